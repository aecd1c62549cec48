"""Run `assayline COMMAND` as `python -m assayline COMMAND`, so that a process can use its own Python."""

from assayline.flows.cli import main

if __name__ == "__main__":
    main()
