"""`python -m flows.restore`, which is `assayline restore`: flows/cli/restore.py."""

from flows.cli import run_module

if __name__ == "__main__":
    run_module("restore")
