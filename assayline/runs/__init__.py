"""A run on disk: its manifest, its lock and its added scorers."""
