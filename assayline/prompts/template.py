"""Prompt templates: Jinja2 over a row's columns, compiled once, run in Jinja's own sandbox.

The sandbox keeps a template away from Python's internals and from changing the row. It does not limit time or memory:
a template is the user's own, or comes with a model that the user chose. A prompt of more than LONGEST_CHARS is refused.

Strict: a variable that the row does not have is an error, not an empty text that nobody sees. So is a cell without a
value, of which Jinja would write "None" into the prompt; `{{ column or '' }}` says what to write instead. Lists and
objects are written as JSON, decimals as digits, true as true, not as Python shows them; bytes, methods and other
objects are refused. That holds for everything that becomes text: what is printed, joined by `~`, formatted, or given to
a filter of texts. `table.values` is the key, and `table.values()` the method. Lines that hold only a block leave no
trace and the text's last newline is dropped, as in chat templates. A column whose name is not an identifier is reached
as `row['my column']`.
"""

import functools
import json
import math
import re
from collections.abc import Callable
from types import BuiltinMethodType
from typing import Any

import jinja2
import jinja2.meta
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.filters import make_attrgetter
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter

from assayline.errors import AssaylineError, PromptError
from assayline.prompts.row import RowError, RowShapeError, as_json, as_text, check_text, hint, is_null, list_names
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
        self._text = "\n".join(one.content for one in messages)

    def render(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        """Render a row; NaN becomes null.

        Raises RowShapeError for an undefined variable or a forbidden access, RowError for other failures."""
        row = {name: None if is_null(value) else value for name, value in row.items()}
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
        tree = ENVIRONMENT.parse(text)
        for call in tree.find_all(nodes.Call):
            if isinstance(method := call.node, nodes.Getattr):
                call.node = _filter(method.node, "_method", nodes.Const(method.attr))
        for joined in tree.find_all(nodes.Concat):
            joined.nodes = [_filter(node, "string") for node in joined.nodes]
        return ENVIRONMENT.from_string(tree)
    except jinja2.TemplateSyntaxError as error:
        raise PromptError(
            f"{setting} is not Jinja2: {error.message} (line {error.lineno} of {text[:80]!r}). "
            "Columns are written {{ column }}."
        ) from None
    except (SyntaxError, RecursionError, ValueError) as error:  # what Jinja made of it is too much for Python
        raise PromptError(
            f"{setting} cannot be compiled: {describe_error(error)} (of {text[:80]!r}). Nest it less deeply."
        ) from None


def _filter(node: nodes.Expr, name: str, *arguments: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(arguments), [], None, None, lineno=node.lineno)


def list_variables(template: str | list[MessageTemplate]) -> list[str]:
    """Return the columns that a template cannot do without, sorted. Raises PromptError for a syntax error."""
    needed: set[str] = set()
    for text in [template] if isinstance(template, str) else [one.content for one in template]:
        _compile("prompts.template", text)
        tree = ENVIRONMENT.parse(text)
        tested = (one.node for one in tree.find_all((nodes.Test, nodes.Filter)) if one.name in MAY_LACK)
        optional = {one.name for one in tested if isinstance(one, nodes.Name)}
        needed |= jinja2.meta.find_undeclared_variables(tree) - optional - ENVIRONMENT.globals.keys()
    return sorted(needed - {"row"})


MAY_LACK = frozenset({"defined", "undefined", "default", "d"})
"""Tests and filters of Jinja2 for a variable that may be missing."""


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


def _write(value: Any) -> Any:
    """Return what a value of a template is as text, or the number that it is.

    Raises NullOutputError for a missing value, and RowError for bytes, methods and the like."""
    if is_null(value):
        raise NullOutputError("null")
    if isinstance(value, jinja2.Undefined):
        str(value)  # raises, naming the variable
    is_plain = isinstance(value, str | int | float) and not isinstance(value, bool)
    return value if is_plain and value not in (math.inf, -math.inf) else as_text(value, "What the template writes")


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, in which an object has its keys and no methods, unless they are called."""

    intercepted_binops = frozenset({"*", "%"})

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, dict):
            return self.getitem(obj, attribute)
        value = super().getattr(obj, attribute)
        return self.undefined(obj=obj, name=attribute) if isinstance(value, BuiltinMethodType) else value

    def getitem(self, obj: Any, argument: Any) -> Any:
        if not isinstance(obj, dict):
            return super().getitem(obj, argument)
        try:
            return obj[argument]
        except (KeyError, TypeError):
            return self.undefined(obj=obj, name=argument)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            if isinstance(right, dict):
                right = {key: _write(value) for key, value in right.items() if not is_null(value)}
            else:
                right = tuple(map(_write, right)) if isinstance(right, tuple) else _write(right)
        elif operator == "*" and (hasattr(left, "__len__") or hasattr(right, "__len__")):
            length = math.prod(value if isinstance(value, int) else len(value) for value in (left, right))
            if length > LONGEST_CHARS:
                words = f"The template makes {length} characters, expected at most {LONGEST_CHARS}."
                raise RowError(words, "prompt_too_long")
        return super().call_binop(context, operator, left, right)


class _Formatter(SandboxedFormatter):
    def format_field(self, value: Any, format_spec: str) -> Any:
        return super().format_field(_write(value), format_spec)


@jinja2.pass_environment
def _find_method(environment: jinja2.Environment, obj: Any, name: str) -> Any:
    if isinstance(obj, str) and name == "format":
        return functools.partial(_Formatter(environment).format, obj)
    return ImmutableSandboxedEnvironment.getattr(environment, obj, name)  # type: ignore[arg-type]


@jinja2.pass_environment
def _join(environment: jinja2.Environment, items: Any, d: str = "", attribute: Any = None) -> str:
    getter = make_attrgetter(environment, attribute) if attribute is not None else lambda item: item
    return str(d).join(str(_write(getter(item))) for item in items)


def _of_text(name: str, filter: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter of Jinja that gets its value as text, and for some its arguments."""
    at = int(hasattr(filter, "jinja_pass_arg"))

    @functools.wraps(filter)
    def read(*args: Any, **kwargs: Any) -> Any:
        value, rest = args[at], args[at + 1 :]
        if name in ("format", "replace"):
            rest, kwargs = tuple(map(_write, rest)), {key: _write(item) for key, item in kwargs.items()}
        if name not in OF_NUMBERS or (is_null(value) and not rest):
            value = _write(value)
        return filter(*args[:at], value, *rest, **kwargs)

    return read


OF_TEXT = (
    "capitalize", "center", "e", "escape", "forceescape", "format", "indent", "lower", "replace", "safe", "string",
    "striptags", "title", "trim", "truncate", "upper", "urlize", "wordcount", "wordwrap",
)  # fmt: skip
"""Filters of Jinja that make their value a text. Python's own text would be None, True or {'a': 1}."""
OF_NUMBERS = ("float", "int", "urlencode")
"""Filters that take other values, too, and make something of None."""

ENVIRONMENT = _Environment(
    undefined=jinja2.StrictUndefined, autoescape=False, trim_blocks=True, lstrip_blocks=True, finalize=_write
)
ENVIRONMENT.filters |= {name: _of_text(name, ENVIRONMENT.filters[name]) for name in (*OF_TEXT, *OF_NUMBERS)}
ENVIRONMENT.filters |= {"_method": _find_method, "join": _join, "pprint": _to_json, "tojson": _to_json}
