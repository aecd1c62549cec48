"""Values of one row: made into text or plain JSON, or refused with a RowError.

Sources differ in what they hold: CSV has only text, Parquet has dates, decimals and NaN for "missing", JSON may hold
lone surrogates that no database takes. Everything passes here once, so that what is stored can be stored.
"""

import datetime
import json
import math
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Literal, NoReturn

from assayline.errors import RowError as RowError
from assayline.words import nearest

UNITS_PER_S = {"s": 1.0, "ms": 1000.0, "date": 1.0}
"""Of stamps, as `read_stamp` reads them."""


class RowShapeError(RowError):
    """The spec asks for what the row does not have: in the first row the whole run is wrong, later only the row."""


def find_column(row: dict[str, Any], column: str, setting: str) -> Any:
    """The row's value in a column. Raises RowShapeError, naming the setting that asks for it and what there is."""
    try:
        return row[column]
    except KeyError:
        raise RowShapeError(
            "row_error", f"Column {column!r}, named by {setting}, is not in the row; {hint(column, row)}"
        ) from None


def hint(name: str, columns: Iterable[str]) -> str:
    """The nearest column, if one is near, and all columns."""
    names = sorted(columns)
    near = nearest(name, names)
    return f"{near} Columns: {list_names(names)}." if near.startswith("did") else f"columns: {list_names(names)}."


def list_names(names: Iterable[str]) -> str:
    """Names for a message, forty at most."""
    shown = sorted(names)
    return ", ".join(shown[:40]) + (f" and {len(shown) - 40} more" if len(shown) > 40 else "") if shown else "(none)"


def as_text(value: Any, where: str) -> str | None:
    """A value as the text that a person would write: 7 → "7", 7.0 → "7.0", True → "true", a list → JSON.

    None and NaN are None. Raises RowError for bytes and for text that is not Unicode.
    """
    match value:
        case str():
            return check_text(value, where)
        case bool():
            return "true" if value else "false"
        case float() if not math.isfinite(value):
            return None if math.isnan(value) else _refuse_infinity(value, where)
        case None | int() | float():
            return None if value is None else str(value)
    plain = as_json(value, where)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def as_json(value: Any, where: str) -> Any:
    """A value that `json.dumps` takes: dates as ISO text, decimals as digits, NaN as None, keys as text.

    Raises RowError for bytes, other objects and text that is not Unicode.
    """
    match value:
        case None | bool() | int():
            return value
        case str():
            return check_text(value, where)
        case float():
            return value if math.isfinite(value) else None if math.isnan(value) else _refuse_infinity(value, where)
        case dict():
            return {check_text(str(key), where): as_json(item, where) for key, item in value.items()}
        case list() | tuple():
            return [as_json(item, where) for item in value]
        case datetime.date() | datetime.time():
            return value.isoformat()
        case Decimal():
            return f"{value:f}"  # str() writes 0E-10 for a zero of ten places
    raise RowError(
        "row_error",
        f"{where} holds {type(value).__name__}, expected text, a number, true or false, a date, a list or an object.",
    )


def _refuse_infinity(value: float, where: str) -> NoReturn:
    raise RowError(
        "row_error",
        f"{where} holds {value}, which is not a number; JSON reads 1e999 and Infinity so. hint: write it as text, or "
        "leave the cell empty.",
    )


def check_text(text: str, where: str) -> str:
    """The text itself. Raises RowError for a lone surrogate, which neither tokenizer nor database takes."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RowError(
                "row_error",
                f"{where} holds a lone surrogate ({text[error.start]!a}, character "
                f"{error.start}), which is not Unicode text. Write it in UTF-8.",
            ) from None
    return text


def read_stamp(value: Any, unit: Literal["s", "ms", "date"]) -> float | None:
    """A moment in its unit, a date in seconds since 1970 (UTC, where it names no offset); None for what is none."""
    try:
        if unit == "date":
            date = value if isinstance(value, datetime.datetime) else datetime.datetime.fromisoformat(value)
            return (date if date.tzinfo else date.replace(tzinfo=datetime.UTC)).timestamp()
        stamp = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return stamp if math.isfinite(stamp) else None


def parse_json(text: str, where: str) -> Any:
    """Parses JSON text, as CSV holds objects. Raises RowError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RowError(
            "row_error", f"{where} holds text that is not JSON: {explain_json(error)}. It begins {text[:60]!r}."
        ) from None


def explain_json(error: Exception) -> str:
    """Why a text is not JSON. Python's own words for a long number advise to call a function of Python's."""
    return "a whole number of more than 4,300 digits" if "sys.set_int_max_str_digits" in str(error) else str(error)
