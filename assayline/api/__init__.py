"""For loops of your own: `from assayline import Engine, evaluate`. An engine that recovers, and an evaluation."""
