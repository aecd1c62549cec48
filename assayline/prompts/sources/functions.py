"""Rows that a Python function yields: one of the project, or of an installed package."""

import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from assayline.errors import PromptError
from assayline.functions import SOURCES, find_function
from assayline.prompts.row import Row, UnreadableRow
from assayline.spec.prompts import PythonSource


def read_function(source: PythonSource) -> Iterator[Row | UnreadableRow]:
    """Yield the rows of the source's function, each a mapping from column to value.

    Anything else is an unreadable row. Raises SpecError if there is no such function, and PromptError if it cannot be
    imported or raises an exception.
    """
    function = find_function(source.function, SOURCES)
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    module, _, name = function.reference.partition(":")
    count = 0
    try:
        rows: Any = getattr(importlib.import_module(module), name)(**source.arguments)
        for row in rows:
            if isinstance(row, Mapping):
                yield dict(row)
            else:
                yield UnreadableRow(
                    repr(row), f"The function {function.reference} yielded {type(row).__name__}, not a mapping."
                )
            count += 1
    except PromptError:
        raise
    except Exception as error:
        raise PromptError(
            f"The function {function.reference} failed after {count} rows: {type(error).__name__}: "
            f"{' '.join(str(error).split())}. hint: it is in {function.file}; it takes source.arguments and yields "
            "mappings from column to value."
        ) from error
