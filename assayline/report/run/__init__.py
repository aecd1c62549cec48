"""The report page of one run, with its comparison to a baseline."""
