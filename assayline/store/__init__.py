"""Storage: part files, the DuckDB file that ingests them, and the metrics in it."""
