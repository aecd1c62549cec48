"""Composition: flows of Prefect (evaluate, benchmark, gate, nightly), and the commands, `assayline COMMAND`.

Prefect reads its settings at import, so the two that nobody expects of a tool on their own machine are turned off here.
"""

import atexit
import os
import sys

os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")


def _say_no_more() -> None:
    sys.stderr.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


if "PREFECT__FLOW_RUN_ID" in os.environ:  # the process of a deployed run
    # Prefect keeps a run's state to the very end, which DuckDB's bindings answer with pages of leak reports. What is
    # registered first is called last, when there is nothing left to say.
    atexit.register(_say_no_more)
