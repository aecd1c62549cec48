"""One run from its plan to its last page, and campaigns of many runs."""
