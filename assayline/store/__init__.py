"""What is stored: part files, the DuckDB file that they are loaded into, and reading metrics out of it."""
