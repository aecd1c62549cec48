"""`python -m flows.score`, which is `assayline score`: flows/cli/score.py."""

from flows.cli import run_module

if __name__ == "__main__":
    run_module("score")
