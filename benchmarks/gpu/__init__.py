"""Throughput and crash recovery of the pipeline on a GPU: `python -m benchmarks.gpu`."""
