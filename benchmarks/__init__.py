"""Benchmarks of speed, memory and statistics. Each module prints a table and, last, one line of JSON."""
