"""Tests, intervals, ranks and strengths, by NumPy and SciPy, from the sums that SQL aggregates.

Functions take and return arrays, and know nothing of runs, files or databases. SciPy takes a while to import, so only
these modules do, and nothing imports them before it computes.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np


def to_rows(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return columns of equal length as rows of plain values, with None for NaN."""
    lists = [
        [None if value != value else value for value in np.asarray(column).tolist()] for column in columns.values()
    ]
    return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]
