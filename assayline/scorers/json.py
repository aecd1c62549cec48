"""The scorer json: whether an answer is JSON and valid under a schema.

JSON is one value as in RFC 8259, with white space around it, and without NaN and Infinity, which Python's parser
accepts. A Markdown fence around the complete answer is removed first, as in IFEval's check of the JSON format (Zhou et
al. 2023). `$schema` selects the draft, 2020-12 by default. A `$ref` to the network is not followed. `format` is an
annotation, as in the drafts.
"""

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NoReturn

from assayline.scorers import Score

MOST_REASON_CHARS = 200
FENCE = re.compile(r"\A(`{3,}|~{3,})[ \t]*[A-Za-z]*[ \t]*\n(.*)\n[ \t]*\1[`~]*\Z", re.DOTALL)


def score_json(
    answer: str, target: str | None, row: dict[str, Any], json_schema: dict[str, Any] | str | None = None
) -> Score:
    """Return 1 if the answer is JSON, and valid under the schema: `json_schema`, or else the one of its request.

    The request's is JSON in `row["json_schema"]`. It never raises, whatever the answer is.
    """
    text = strip_fence(answer)
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except ValueError as error:
        return Score(0.0, None, _shorten(f"invalid JSON: {error}"))
    except RecursionError:
        return Score(0.0, None, "invalid JSON: nested too deeply")
    schema = json_schema or row.get("json_schema")
    if schema is None:
        return Score(1.0, text, "JSON")
    if fault := _make_validator(schema if isinstance(schema, str) else json.dumps(schema))(value):
        return Score(0.0, text, _shorten(fault))
    return Score(1.0, text, "JSON, valid under the schema")


def strip_fence(answer: str) -> str:
    """Return an answer without the white space and the Markdown fence around all of it."""
    text = answer.strip()
    return fenced[2].strip() if (fenced := FENCE.match(text)) else text


@lru_cache
def _make_validator(text: str) -> Callable[[Any], str | None]:
    import jsonschema  # here: most runs have no schema, and it takes a tenth of a second
    import referencing

    schema = json.loads(text)
    schema = json.loads(schema) if isinstance(schema, str) else schema
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    validator = kind(schema, registry=referencing.Registry())  # an empty one: nothing is fetched

    def find_fault(value: Any) -> str | None:
        try:
            error = jsonschema.exceptions.best_match(validator.iter_errors(value))
        except Exception as failure:  # a $ref that leads nowhere, a pattern that Python cannot compile, endless nesting
            return f"the schema cannot be applied: {type(failure).__name__}: {failure}"
        if error is None:
            return None
        where = "/".join(str(part) for part in error.absolute_path) or "the top"
        return f"not valid under the schema: at {where}, {error.message}"

    return find_fault


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _shorten(text: str) -> str:
    return text if len(text) <= MOST_REASON_CHARS else text[: MOST_REASON_CHARS - 1] + "…"
