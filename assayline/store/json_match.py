"""The scorer `json`: check that an answer is JSON and valid under a schema. In Python, because DuckDB has no schemas.

JSON is one value as in RFC 8259, with white space around it, and without NaN and Infinity, which Python's parser
accepts. A Markdown fence around the complete answer is removed first, as in IFEval's check of the JSON format (Zhou et
al. 2023). `$schema` selects the draft, 2020-12 by default. A `$ref` to the network is not followed. `format` is an
annotation, as in the drafts.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

import duckdb
from duckdb import DuckDBPyConnection
from duckdb.func import FunctionNullHandling
from duckdb.sqltypes import DOUBLE, VARCHAR

from assayline.spec.criteria import JsonMatch, Scorer

LONGEST_EXPLANATION = 200
FENCE = re.compile(r"\A```[A-Za-z]*[ \t]*\n(.*)\n[ \t]*```\Z", re.DOTALL)


class Score(NamedTuple):
    """Score of one answer, with the fields of the SQL macro make_score."""

    value: float
    extracted: str | None
    """The JSON text in the answer."""
    explanation: str


JSON_FUNCTION = "score_json"


CALL = f"""{JSON_FUNCTION}(answer, (
    select any_value(sampling_json -> '$.structured_outputs.json')
    from requests
    where requests.run_id = stg_samples.run_id and requests.request_id = stg_samples.request_id
))"""  # noqa: S608 - the name is ours
"""Call over the columns of stg_samples: an answer, and the schema that its request demands."""


@contextmanager
def json_function(connection: DuckDBPyConnection, scorer: Scorer) -> Iterator[None]:
    """Register the scorer as an SQL function during the block, if it is a Python function.

    Without a schema of its own, the scorer checks that of each request.
    """
    if not isinstance(scorer, JsonMatch):
        yield
        return
    own = scorer.json_schema

    @lru_cache
    def find_scorer(form: str | None) -> Callable[[str | None], Score]:
        schema = json.loads(form) if form and own is None else own
        return make_json_scorer(json.loads(schema) if isinstance(schema, str) else schema)

    columns = {"value": DOUBLE, "extracted": VARCHAR, "explanation": VARCHAR, "found_by": VARCHAR}
    connection.create_function(
        JSON_FUNCTION,
        lambda answer, form: {**find_scorer(form)(answer)._asdict(), "found_by": None},
        [VARCHAR, VARCHAR],
        duckdb.struct_type(columns),
        null_handling=FunctionNullHandling.SPECIAL,
    )
    try:
        yield
    finally:
        connection.remove_function(JSON_FUNCTION)


def make_json_scorer(schema: dict[str, Any] | None) -> Callable[[str | None], Score]:
    """Return the function that scores one answer. It never raises, whatever the answer is."""
    find_fault = _make_validator(schema) if schema is not None else lambda _: None

    def score(answer: str | None) -> Score:
        if answer is None:
            return Score(0.0, None, "no answer")
        text = answer.strip()
        if fenced := FENCE.match(text):
            text = fenced[1].strip()
        try:
            value = json.loads(text, parse_constant=_refuse_constant)
        except ValueError as error:
            return Score(0.0, None, _shorten(f"invalid JSON: {error}"))
        except RecursionError:
            return Score(0.0, None, "invalid JSON: nested too deeply")
        if fault := find_fault(value):
            return Score(0.0, text, _shorten(fault))
        return Score(1.0, text, "JSON" if schema is None else "JSON, valid under the schema")

    return score


def _make_validator(schema: dict[str, Any]) -> Callable[[Any], str | None]:
    import jsonschema  # here: most runs have no schema, and it takes a tenth of a second
    import referencing

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
    return text if len(text) <= LONGEST_EXPLANATION else text[: LONGEST_EXPLANATION - 1] + "…"
