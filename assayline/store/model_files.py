"""A file of `sql/models/` or `sql/scorers/`: the view or macro that it makes, and how its rows are kept.

A view with the column run_id is kept: once a run has ended its rows are stored (`kept.py`). Every row of such a view
must come from rows of its own run. A line among the first comments of a file says where it is otherwise,
and the views of the staging folder, as large as the raw tables, are not kept unless theirs says how:

    -- Kept: no, and why.                        computed whenever it is read
    -- Kept: one metric at a time: a, b, c.      stored by one query per value of a column, for little memory
    -- Kept: as the rows of requests.            a kept run's rows are those of this table: nothing was to be left out
"""

import re
from dataclasses import dataclass
from pathlib import Path

STAGING = "10_staging"
_RULE = re.compile(
    r"no, (?P<reason>.+)\.|one (?P<column>\w+) at a time: (?P<values>\w+(?:, \w+)*)\.|as the rows of (?P<table>\w+)\."
)
_HEADER = re.compile(r"\A(?:--.*\n)+")


@dataclass(frozen=True, slots=True)
class ModelFile:
    """What one file makes."""

    name: str
    text: str
    is_view: bool
    reason: str | None = None
    """Why its rows are not kept."""
    column: str | None = None
    """The column whose values are kept one after the other."""
    values: tuple[str, ...] = ()
    table: str | None = None
    """The table whose rows it has for a run that is kept."""

    @property
    def definition(self) -> str:
        """The statement that makes it."""
        return self._split()[0]

    @property
    def comments(self) -> str:
        """The statements that describe it and its columns."""
        return "".join(self._split()[1:])

    def _split(self) -> tuple[str, str, str]:
        return self.text.partition("\ncomment on ")


def read_model(file: Path) -> ModelFile:
    """Reads a file. Raises ValueError for a line about keeping that says none of the three things."""
    text = file.read_text(encoding="utf-8")
    name = name_model(file)
    is_view = re.search(r"^create or replace view ", text, re.M) is not None
    header = _HEADER.match(text)
    rules = re.findall(r"^-- Kept:\s*(.*)$", header[0] if header else "", re.M)
    if not rules:
        return ModelFile(name, text, is_view, "it has a row per request" if file.parent.name == STAGING else None)
    found = _RULE.fullmatch(rules[0]) if len(rules) == 1 and is_view else None
    if found is None:
        raise ValueError(
            f"{file} says `-- Kept: {rules[0]}`. Of a view, and once, it can say `no, REASON.`, "
            "`one COLUMN at a time: VALUE, VALUE.` or `as the rows of TABLE.`"
        )
    values = tuple(found["values"].split(", ")) if found["values"] else ()
    return ModelFile(name, text, is_view, found["reason"], found["column"], values, found["table"])


def name_model(file: Path) -> str:
    """The view or macro that a model's file makes: its name without the number that orders it."""
    return re.sub(r"^\d+_", "", file.stem)
