"""The report of a run: what a person looks at afterwards, as one HTML file and as Markdown.

`run/rows.py` reads rows of the SQL models; modules here put them into sections (`about`, `speed`, `engines`, …) of
a `document`, and `html` and `markdown` render it. No number is computed on the way.
"""
