"""`python -m flows.keep`, which is `assayline keep`: flows/cli/keep.py."""

from flows.cli import run_module

if __name__ == "__main__":
    run_module("keep")
