"""One run against another: baselines, differences, and whether they break a gate."""
