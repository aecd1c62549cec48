"""Composition: each module is a Prefect flow and a command, `python -m flows.<name>`.

Prefect reads its settings at import, so the two that nobody expects of a tool on their own machine are turned off here.
"""

import os

os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
