"""Configurations of one spec, run side by side: combinations of fields, or points of a load."""
