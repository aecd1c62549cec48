"""Prompt templates: Jinja2 over a row's columns, compiled once, run in Jinja's own sandbox.

The sandbox keeps a template away from Python's internals and from changing the row. It does not limit time or memory:
a template is the user's own, or comes with a model that the user chose. A prompt of more than LONGEST_CHARS is refused.

Strict: a variable that the row does not have is an error, not an empty text that nobody sees. So is a cell without a
value, of which Jinja would write "None" into the prompt; `{{ column or '' }}` says what to write instead. Lists and
objects are written as JSON and decimals as digits, not as Python shows them; bytes are refused. Lines that
hold only a block leave no trace and the text's last newline is dropped, as in chat templates. A column whose name is
not an identifier is reached as `row['my column']`.
"""

import json
import math
import re
from decimal import Decimal
from typing import Any

import jinja2
import jinja2.meta
import jinja2.nodes
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from assayline.errors import AssaylineError, PromptError
from assayline.prompts.row import RowError, RowShapeError, as_json, as_text, check_text, hint, list_names
from assayline.spec.prompts import MessageTemplate

LONGEST_CHARS = 2**23
"""Maximum characters of a prompt: two million tokens or so."""


class PromptTemplate:
    """Messages from a row: one user message from a text, or one message per MessageTemplate."""

    def __init__(self, template: str | list[MessageTemplate], setting: str = "prompts.template") -> None:
        """Compile the template. Raises PromptError, naming the setting, for a syntax error and for an empty list."""
        messages = [MessageTemplate(role="user", content=template)] if isinstance(template, str) else template
        if not messages:
            raise PromptError(f"{setting} is an empty list, expected a text or at least one {{role, content}}.")
        self._setting = setting
        self._messages = [(one.role, _compile(setting, one.content)) for one in messages]
        self._prints_self = any(_names_self(one.content) for one in messages)
        self._text = "\n".join(one.content for one in messages)

    def render(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        """Render a row; NaN becomes null.

        Raises RowShapeError for an undefined variable or a forbidden access, RowError for other failures."""
        if self._prints_self and "self" in row:
            raise RowShapeError(
                f"{self._setting} uses `self`, which Jinja2 keeps for itself. hint: write row['self'] for the column.",
                "template_error",
            )
        row = {name: None if _is_null(value) else value for name, value in row.items()}
        return [{"role": role, "content": self._render(template, row)} for role, template in self._messages]

    def _render(self, template: jinja2.Template, row: dict[str, Any]) -> str:
        try:
            text = template.render({"row": row, **row})
        except AssaylineError:
            raise
        except SecurityError as error:
            message = f"{self._setting} is not allowed to do this: {error.message}"
            raise RowShapeError(message, "template_error") from None
        except jinja2.UndefinedError as error:
            raise RowShapeError(f"{self._setting}: {_explain_undefined(str(error), row)}", "template_error") from None
        except NullOutputError:
            raise RowError(f"{self._setting} writes {self._explain_null(row)}", "template_error") from None
        except Exception as error:  # a template is a program over foreign data: it can raise anything
            raise RowError(f"{self._setting} failed: {describe_error(error)}", "template_error") from None
        if len(text) > LONGEST_CHARS:
            raise RowError(
                f"{self._setting} writes {len(text)} characters, expected at most {LONGEST_CHARS}. hint: shorten the "
                "row, or look for a loop that writes too much.",
                "prompt_too_long",
            )
        return check_text(text, "The rendered prompt")

    def _explain_null(self, row: dict[str, Any]) -> str:
        named = [
            name for name, value in row.items() if value is None and re.search(rf"\b{re.escape(name)}\b", self._text)
        ]
        which = f": {list_names(named)}" if named else ""
        example = named[0] if named and named[0].isidentifier() else "value"
        return (
            f"a value that is null{which}. Fill it in, or say what to write instead, as in {{{{ {example} or '' }}}}."
        )


class NullOutputError(ValueError):
    """A template writes a value that is null."""


def describe_error(error: Exception) -> str:
    """Return an exception's type and message, cut because the message may quote megabytes of text."""
    return f"{type(error).__name__}: {error!s:.500}"


def _compile(setting: str, text: str) -> jinja2.Template:
    try:
        return ENVIRONMENT.from_string(text)
    except jinja2.TemplateSyntaxError as error:
        raise PromptError(
            f"{setting} is not Jinja2: {error.message} (line {error.lineno} of {text[:80]!r}). "
            "Columns are written {{ column }}."
        ) from None
    except (SyntaxError, RecursionError, ValueError) as error:  # what Jinja made of it is too much for Python
        raise PromptError(
            f"{setting} cannot be compiled: {describe_error(error)} (of {text[:80]!r}). Nest it less deeply."
        ) from None


def list_variables(template: str | list[MessageTemplate]) -> list[str]:
    """Return the columns that a template cannot do without, sorted. Raises PromptError for a syntax error."""
    needed: set[str] = set()
    for text in [template] if isinstance(template, str) else [one.content for one in template]:
        _compile("prompts.template", text)
        tree = ENVIRONMENT.parse(text)
        tested = (one.node for one in tree.find_all((jinja2.nodes.Test, jinja2.nodes.Filter)) if one.name in MAY_LACK)
        optional = {one.name for one in tested if isinstance(one, jinja2.nodes.Name)}
        needed |= jinja2.meta.find_undeclared_variables(tree) - optional - ENVIRONMENT.globals.keys()
    return sorted(needed - {"row"})


MAY_LACK = frozenset({"defined", "undefined", "default", "d"})
"""Tests and filters of Jinja2 for a variable that may be missing."""


def _names_self(text: str) -> bool:
    return any(name.name == "self" for name in ENVIRONMENT.parse(text).find_all(jinja2.nodes.Name))


def _explain_undefined(message: str, row: dict[str, Any]) -> str:
    variable = re.match(r"'(.+)' is undefined$", message)
    if variable:
        return f"variable {variable[1]!r} is undefined; {hint(variable[1], row)}"
    return f"{message}. Columns: {list_names(row)}."


def _to_json(value: Any, indent: int | None = None) -> str:
    """Jinja's own tojson escapes <, > and & for HTML, which no prompt wants."""
    if isinstance(value, jinja2.Undefined):
        str(value)  # raises, naming the variable
    return json.dumps(as_json(value, "What the filter tojson gets"), ensure_ascii=False, indent=indent)


def _is_null(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _write(value: Any) -> Any:
    """Return the text of a value in a template.

    Raises NullOutputError for None and for NaN, which stands for it in tables, and RowError for bytes."""
    if _is_null(value):
        raise NullOutputError("null")
    is_infinite = isinstance(value, float) and math.isinf(value)
    return as_text(value, "What the template writes") if is_infinite or isinstance(value, AS_COLUMNS) else value


AS_COLUMNS = (dict, list, tuple, Decimal, bytes)
"""Types of which Python's own text is not what a person means. They become what they are as a column (`row.py`)."""


ENVIRONMENT = ImmutableSandboxedEnvironment(
    undefined=jinja2.StrictUndefined, autoescape=False, trim_blocks=True, lstrip_blocks=True, finalize=_write
)
ENVIRONMENT.filters["tojson"] = _to_json
