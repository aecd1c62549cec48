"""Tables of older databases, brought to today's columns by the numbered files of `sql/migrations/`.

`05_NAME.sql` takes tables of version 4 to version 5; a database goes through all files that it has not seen, in one
transaction. Part files are never written anew: what a part may lack are the columns that a migration adds.
"""

import re
from functools import cache
from pathlib import Path

OLDEST_VERSION = 4
"""Databases and parts of an older version are refused: no file takes them further."""

_ADDED = re.compile(r"^alter table (?:if exists )?(?P<table>\w+) add column (?P<column>\w+) ", re.M)


def list_migrations(folder: Path, version: int, wanted: int) -> list[Path]:
    """The files that take tables of `version` to `wanted`, in their order. Raises KeyError where one is not there."""
    files = _find_files(folder)
    return [files[number] for number in range(version + 1, wanted + 1)]


@cache
def list_added_columns(folder: Path, table: str) -> frozenset[str]:
    """Columns of a table that migrations have added: parts written before them do not have these."""
    texts = [file.read_text(encoding="utf-8") for file in _find_files(folder).values()]
    added = [found for text in texts for found in _ADDED.finditer(text)]
    return frozenset(found["column"] for found in added if found["table"] == table)


def _find_files(folder: Path) -> dict[int, Path]:
    return {int(file.name.partition("_")[0]): file for file in folder.glob("*.sql")}
