"""`python -m flows.report`, which is `assayline report`: flows/cli/report.py."""

from flows.cli import run_module

if __name__ == "__main__":
    run_module("report")
