"""Prompt templates: Jinja2 over a row's columns, compiled once, run in a sandbox.

Strict: a variable that the row does not have is an error, not an empty text that nobody sees. Lines that hold only a
block leave no trace and the text's last newline is dropped, as in chat templates. A column whose name is not an
identifier is reached as `row['my column']`.
"""

import json
import re
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from assayline.errors import PromptError
from assayline.prompts.row_values import RowError, RowShapeError, check_text, hint, list_names
from assayline.spec import MessageTemplate


class PromptTemplate:
    """Messages from a row: one user message from a text, or one message per MessageTemplate."""

    def __init__(self, template: str | list[MessageTemplate]) -> None:
        """Compiles. Raises PromptError for a syntax error and for an empty list."""
        messages = [MessageTemplate(role="user", content=template)] if isinstance(template, str) else template
        if not messages:
            raise PromptError("prompts.template is an empty list, expected a text or at least one {role, content}.")
        self._messages = [(message.role, _compile(message.content)) for message in messages]

    def render(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        """Raises RowShapeError for an undefined variable or a forbidden access, RowError for other failures."""
        return [{"role": role, "content": _render(template, row)} for role, template in self._messages]


def _compile(text: str) -> jinja2.Template:
    try:
        return ENVIRONMENT.from_string(text)
    except jinja2.TemplateSyntaxError as error:
        raise PromptError(f"prompts.template is not Jinja2: {error.message} (line {error.lineno} of {text[:80]!r}). "
                          "Columns are written {{ column }}.") from None


def _render(template: jinja2.Template, row: dict[str, Any]) -> str:
    try:
        text = template.render({"row": row, **row})
    except SecurityError as error:
        raise RowShapeError("template_error", f"prompts.template is not allowed to do this: {error.message}") from None
    except jinja2.UndefinedError as error:
        raise RowShapeError("template_error", f"prompts.template: {_explain_undefined(str(error), row)}") from None
    except Exception as error:  # a template is a program over foreign data: it can raise anything
        raise RowError("template_error", f"prompts.template failed: {type(error).__name__}: {error}") from None
    return check_text(text, "The rendered prompt")


def _explain_undefined(message: str, row: dict[str, Any]) -> str:
    variable = re.match(r"'(.+)' is undefined$", message)
    if variable:
        return f"variable {variable[1]!r} is undefined; {hint(variable[1], row)}"
    return f"{message}. Columns: {list_names(row)}."


def _to_json(value: Any, indent: int | None = None) -> str:
    """Jinja's own tojson escapes <, > and & for HTML, which no prompt wants."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


ENVIRONMENT = ImmutableSandboxedEnvironment(
    undefined=jinja2.StrictUndefined, autoescape=False, trim_blocks=True, lstrip_blocks=True
)
ENVIRONMENT.filters["tojson"] = _to_json
