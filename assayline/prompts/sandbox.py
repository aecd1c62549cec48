"""Jinja's sandbox, with bounds on what one step of a template may make.

Jinja's own keeps a template away from Python's internals and bounds `range`, but lets it multiply a text to the size of
the machine. Here whatever can make a long text or a large number in a single step is refused when the result would be
beyond LONGEST_CHARS or LARGEST_BITS, and so is a rendered text. Long ways to the same end are for `render_limit.py`.

What remains: these are the usual ways. A template that is made to exhaust memory may find another, such as the
indentation of a JSON filter; a foreign model's chat template is worth a look before a machine is trusted to it.
"""

import re
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.nodes import Concat
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

LONGEST_CHARS = 2**23
"""Characters of a text, or items of a list: two million tokens or so."""
LARGEST_BITS = 2**16
WIDE = re.compile(r"%(?:\([^)]*\))?[-+ #0]*\d*\.?(?:\*|\d{6,})|\{[^{}]*:[^{}]*(?:\{|\d{6,})")
"""A printf-like or a format field that is very wide, or whose width is an argument."""


class _BoundedGenerator(CodeGenerator):
    """Makes `~` say what it made: Jinja asks nobody about this operator."""

    def visit_Concat(self, node: Concat, frame: Frame) -> None:
        self.write("environment.bound_text(")
        super().visit_Concat(node, frame)
        self.write(")")


class BoundedSandbox(ImmutableSandboxedEnvironment):
    """The sandbox for every template: those of specs, and chat templates."""

    code_generator_class = _BoundedGenerator
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in FILTER_CHARS:
            self.filters[name] = _bound_filter(name, self.filters[name])

    @staticmethod
    def bound_text(text: str) -> str:
        """A text that `~` has joined. Raises SecurityError where it is too long to be joined again."""
        _check_chars(len(text))
        return text

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """Joins what a template, a macro or a block has written."""
        written: list[str] = []
        chars = 0
        for piece in pieces:
            chars += len(piece)
            _check_chars(chars)
            written.append(piece)
        return "".join(written)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An operator's result. Raises SecurityError where it would be too large."""
        if operator == "%":
            if isinstance(left, str):
                _check_fields(left)
        elif isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            if bits > LARGEST_BITS:
                raise SecurityError(f"{operator} makes a number of {bits} bits, at most {LARGEST_BITS} are allowed")
        elif operator == "+":
            if isinstance(left, (str, list, tuple)) and isinstance(right, (str, list, tuple)):
                _check_chars(len(left) + len(right))
        elif operator == "*":
            for items, times in ((left, right), (right, left)):
                if isinstance(times, int) and isinstance(items, (str, bytes, list, tuple)):
                    _check_chars(max(len(items), _joined("", items)) * times)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """A call's result. Raises SecurityError where a text's method would make too long a text."""
        method = getattr(function, "__wrapped__", function)  # Jinja wraps str.format
        text = getattr(method, "__self__", None)
        if isinstance(text, str):
            if method.__name__ in ("format", "format_map"):
                _check_fields(text)
            elif method.__name__ in METHOD_CHARS:
                _check_chars(METHOD_CHARS[method.__name__](text, *args, **kwargs))
        return super().call(context, function, *args, **kwargs)


def _bound_filter(name: str, unbound: Callable[..., Any]) -> Callable[..., Any]:
    skipped = int(hasattr(unbound, "jinja_pass_arg"))  # Jinja hands over a context first

    @wraps(unbound)
    def bound(*args: Any, **kwargs: Any) -> Any:
        if name == "join":
            args = (*args[:skipped], list(args[skipped]), *args[skipped + 1 :])
        _check_chars(FILTER_CHARS[name](*args[skipped:], **kwargs))
        return unbound(*args, **kwargs)

    return bound


def _check_chars(chars: int) -> None:
    if chars > LONGEST_CHARS:
        raise SecurityError(f"a text of {chars} characters or more, at most {LONGEST_CHARS} are allowed")


def _check_fields(text: str) -> None:
    if field := WIDE.search(text):
        raise SecurityError(f"the field {field[0]!r:.60}, whose width is an argument or has more than five digits")


def _padded(text: Any, width: Any = 0, *_: Any, **others: Any) -> int:
    return max((value for value in (width, *others.values()) if isinstance(value, int)), default=0)


def _replaced(text: Any, old: Any = "", new: Any = "", *_: Any, **others: Any) -> int:
    longest = max((len(str(value)) for value in (new, *others.values())), default=0)
    return len(str(text)) + str(text).count(str(old)) * longest


def _joined(separator: Any, items: Any, *_: Any) -> int:
    if not isinstance(items, (list, tuple)):
        return 0
    return sum(len(item) for item in items if isinstance(item, str)) + len(str(separator)) * len(items)


def _indented(text: Any, width: Any = 4, *_: Any, **others: Any) -> int:
    return (str(text).count("\n") + 1) * (len(width) if isinstance(width, str) else _padded(text, width, **others))


def _formatted(text: Any, *_: Any, **__: Any) -> int:
    _check_fields(str(text))
    return 0


METHOD_CHARS: dict[str, Callable[..., int]] = {
    "center": _padded,
    "expandtabs": lambda text, width=8, **_: text.count("\t") * width,
    "join": _joined,
    "ljust": _padded,
    "replace": _replaced,
    "rjust": _padded,
    "zfill": _padded,
}
FILTER_CHARS: dict[str, Callable[..., int]] = {
    "center": _padded,
    "format": _formatted,
    "indent": _indented,
    "join": lambda items, separator="", *_, **__: _joined(separator, items),
    "replace": _replaced,
}
"""At least how many characters the result has, for what can make a long text in one step."""
