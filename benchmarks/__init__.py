"""Claims about speed and memory, measured: each module prints a table and, last, one line of JSON."""
