"""Prefect flows (evaluate, benchmark, gate, nightly) and the commands, `assayline COMMAND`.

Prefect reads its settings at import, so telemetry and analytics are turned off here, before that import.
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
    # Prefect holds a run's state until the process exits, and DuckDB's bindings then print pages of leak reports.
    # atexit calls the handler that was registered first last, so this one mutes stderr at the very end.
    atexit.register(_say_no_more)
