"""Reports as one HTML file and as Markdown.

`run/rows.py` reads rows of the SQL models, the modules here turn them into the sections of a `document`, and `html` and
`markdown` render it. No metric is computed here.
"""
