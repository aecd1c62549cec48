"""Comparisons of runs: baselines, differences and the gate."""
