"""The page about one run, and what it is held against."""
