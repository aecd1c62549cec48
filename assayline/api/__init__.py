"""Python API: `from assayline import Engine, evaluate`. An engine with crash recovery, and evaluations."""
