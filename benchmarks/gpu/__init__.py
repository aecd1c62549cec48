"""What a GPU is worth to the pipeline, and what the pipeline survives there: `python -m benchmarks.gpu`."""
