"""Tests, intervals, ranks and strengths, by NumPy and SciPy, from the sums that SQL aggregates.

Functions take and return arrays, and know nothing of runs, files or databases. SciPy takes a while to import, so only
these modules do, and nothing imports them before it computes.
"""
