"""`python -m flows.runs`, which is `assayline runs`: flows/cli/runs.py."""

from flows.cli import run_module

if __name__ == "__main__":
    run_module("runs")
