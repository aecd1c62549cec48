"""Exports: a run's stored requests and answers in the formats of others. Nothing is computed here that SQL defines."""
