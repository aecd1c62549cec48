"""What a run is on disk: its manifest, its locks, its scorers."""
