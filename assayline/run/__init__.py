"""Runs from start to end: the driver, what follows the last answer, and campaigns of many runs."""
