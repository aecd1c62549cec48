"""Benchmarks: configurations of one spec, as combinations of fields or points of a load sweep."""
