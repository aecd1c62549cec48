"""Scorers that are Python functions, each run in processes of its own with limits on time and memory.

`process.py` asks them, and `host.py` is what runs there. `math.py` and `code.py` have assayline's own functions.
"""
