"""`python -m flows.mirror`, which is `assayline mirror`: flows/cli/mirror.py."""

from flows.cli import run_module

if __name__ == "__main__":
    run_module("mirror")
