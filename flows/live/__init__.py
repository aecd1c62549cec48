"""Output of a running flow: progress bar, artifacts, log lines and states."""
