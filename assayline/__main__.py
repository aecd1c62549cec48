"""Run `assayline COMMAND` as `python -m assayline COMMAND`, for processes that start a command with their own Python."""

from assayline.flows.cli import main

if __name__ == "__main__":
    main()
