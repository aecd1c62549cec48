"""`python -m flows.tasks`, which is `assayline tasks`: flows/cli/tasks.py."""

from flows.cli import run_module

if __name__ == "__main__":
    run_module("tasks")
