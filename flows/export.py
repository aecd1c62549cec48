"""`python -m flows.export`, which is `assayline export`: flows/cli/export.py."""

from flows.cli import run_module

if __name__ == "__main__":
    run_module("export")
