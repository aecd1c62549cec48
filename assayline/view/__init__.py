"""The viewer: pages in a browser about runs, their answers and pairs of runs, and labels of people.

`server.py` admits one browser and reads the database, `pages.py` makes the
pages from them, and `templates/` has their HTML.
"""
