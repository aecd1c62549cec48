"""What a running flow shows: bar, progress, log lines, state."""
