"""The page about a benchmark's sweep."""
