"""`python -m flows.rebuild`, which is `assayline rebuild`: flows/cli/rebuild.py."""

from flows.cli import run_module

if __name__ == "__main__":
    run_module("rebuild")
