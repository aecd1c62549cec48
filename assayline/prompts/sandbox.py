"""Jinja's sandbox, with bounds on what one step of a template may make.

Jinja's own keeps a template away from Python's internals and bounds `range`, but lets it multiply a text to the size of
the machine. Here a value that a template makes is refused when it is larger than LONGEST_CHARS or LARGEST_BITS, with
everything in it. Operators, filters and methods whose result can be much larger than what they are given, or take much
longer, are looked at before they run: no thread can stop a single step of C. Whatever takes many steps is for
`render_limit.py`.
"""

import re
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence, Set, ValuesView
from datetime import date, time
from decimal import Decimal
from functools import update_wrapper, wraps
from typing import Any

from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError, TemplateSyntaxError
from jinja2.nodes import Concat, Dict, EvalContextModifier, Expr, Impossible, List, TemplateData, Tuple
from jinja2.runtime import Context, str_join
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEscapeFormatter, SandboxedFormatter
from markupsafe import Markup

LONGEST_CHARS = 2**23
"""Characters of a text, or of a list with all its texts: two million tokens or so."""
LARGEST_BITS = 2**16
MOST_FIELDS = 100_000
"""Of one printf-like format."""
COMPARED_CHARS = 64
"""Searches that compare every character with every other get this many of them for one character of LONGEST_CHARS."""
TEXTS = frozenset({str, bytes, Markup})
PLAIN = frozenset({int, float, bool, type(None), range})
PERCENT_FIELD = re.compile(r"[-+ #0]*(\*|\d*)(?:\.(\*|\d*))?")


class _BoundedGenerator(CodeGenerator):
    """Asks the environment about what Jinja asks nobody: `~`, and lists, tuples and dicts that are written out.

    Nothing is computed while a template is compiled, where results of filters would be joined without a question.
    """

    def visit_Concat(self, node: Concat, frame: Frame) -> None:
        self.write("environment.join_text((")
        for operand in node.nodes:
            self.visit(operand, frame)
            self.write(", ")
        self.write("))")

    def visit_List(self, node: List, frame: Frame) -> None:
        self._write_bounded(lambda: super(_BoundedGenerator, self).visit_List(node, frame))

    def visit_Dict(self, node: Dict, frame: Frame) -> None:
        self._write_bounded(lambda: super(_BoundedGenerator, self).visit_Dict(node, frame))

    def visit_Tuple(self, node: Tuple, frame: Frame) -> None:
        if node.ctx == "load":
            self._write_bounded(lambda: super(_BoundedGenerator, self).visit_Tuple(node, frame))
        else:  # names that are assigned to
            super().visit_Tuple(node, frame)

    def _write_bounded(self, write: Callable[[], None]) -> None:
        self.write("environment.bound(")
        write()
        self.write(")")

    def visit_EvalContextModifier(self, node: EvalContextModifier, frame: Frame) -> None:
        raise TemplateSyntaxError("the tag autoescape is for HTML, and no prompt is", node.lineno)

    visit_ScopedEvalContextModifier = visit_EvalContextModifier  # type: ignore[assignment]

    def _output_child_to_const(self, node: Expr, frame: Frame, finalize: Any) -> str:
        if not isinstance(node, TemplateData):
            raise Impossible
        return super()._output_child_to_const(node, frame, finalize)


class BoundedSandbox(ImmutableSandboxedEnvironment):
    """The sandbox for every template: those of specs, and chat templates."""

    code_generator_class = _BoundedGenerator
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.optimized = False  # it computes while it compiles
        self.filters = _BoundedFilters(self.filters)

    @staticmethod
    def bound(made: Any) -> Any:
        """What a template has made, unless it is too large."""
        if isinstance(made, (str, bytes)):
            _check_chars(len(made))
        elif isinstance(made, int):
            _check_bits(made.bit_length())
        elif isinstance(made, Decimal):
            _check_bits(4 * abs(made.adjusted()))
        else:
            _check_chars(_weigh(made))
        return made

    @staticmethod
    def join_text(operands: tuple[Any, ...]) -> str:
        """What `~` makes. Raises SecurityError if it is too long."""
        _check_chars(_weigh(operands, of_item=0))
        joined = str_join(operands)
        _check_chars(len(joined))
        return joined

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
        """An operator's result. Raises SecurityError if it would be too large."""
        if operator == "%" and isinstance(left, (str, bytes)):
            _check_chars(_formatted(left, right))
        elif isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length())
        elif operator == "*":
            for items, times in ((left, right), (right, left)):
                if isinstance(times, int) and isinstance(items, (str, bytes, list, tuple)):
                    _check_chars(_weigh(items) * times)
        elif operator == "+" and isinstance(left, (str, bytes)) and isinstance(right, (str, bytes)):
            _check_chars(len(left) + len(right))
        return self.bound(super().call_binop(context, operator, left, right))

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """A call's result. Raises SecurityError if it is too large, or a method would take too long."""
        if args or kwargs:
            self.bound([*args, *kwargs.values()])  # a macro can keep them as a tuple and a dict
        name, owner = getattr(function, "__name__", ""), getattr(function, "__self__", None)
        if name in METHOD_CHARS and isinstance(owner, (str, bytes, int, date, time)):
            if name == "join":
                args = tuple(map(_as_list, args))
            _check_chars(METHOD_CHARS[name](owner, *args, **kwargs))
        return self.bound(super().call(context, function, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format`, as Jinja lets it run, and within bounds."""
        if super().wrap_str_format(value) is None:
            return None
        text, takes_mapping = value.__self__, value.__name__ == "format_map"

        def bounded(*args: Any, **kwargs: Any) -> str:
            is_markup = isinstance(text, Markup)
            formatter = _BoundedEscapeFormatter(self, escape=text.escape) if is_markup else _BoundedFormatter(self)
            if takes_mapping:
                (kwargs,), args = args, ()
            return type(text)(formatter.vformat(text, args, kwargs))  # type: ignore[no-any-return]

        return update_wrapper(bounded, value)


class _BoundedFormatter(SandboxedFormatter):
    """For one text: its fields together are not too long."""

    chars = 0

    def format_field(self, value: Any, format_spec: str) -> Any:
        widths = sum(int(digits) for digits in re.findall(r"\d+", format_spec))
        _check_chars(self.chars + widths + _strftime_chars(value, format_spec))
        text = super().format_field(value, format_spec)
        self.chars += len(text)
        _check_chars(self.chars)
        return text


class _BoundedEscapeFormatter(_BoundedFormatter, SandboxedEscapeFormatter):
    """The same for texts of which HTML is escaped."""


class _BoundedFilters(dict[str, Callable[..., Any]]):
    """Filters, each within bounds, also those that are added later."""

    def __init__(self, filters: Mapping[str, Callable[..., Any]]) -> None:
        super().__init__()
        for name, unbound in filters.items():
            self[name] = unbound

    def __setitem__(self, name: str, unbound: Callable[..., Any]) -> None:
        skipped = int(hasattr(unbound, "jinja_pass_arg"))  # Jinja hands over a context first

        @wraps(unbound)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            if name in ("join", "sum"):
                args = (*args[:skipped], _as_list(args[skipped]), *args[skipped + 1 :])
            if chars := FILTER_CHARS.get(name):
                _check_chars(chars(*args[skipped:], **kwargs))
            return BoundedSandbox.bound(unbound(*args, **kwargs))

        super().__setitem__(name, bounded)


def _check_chars(chars: int) -> None:
    if chars > LONGEST_CHARS:
        raise SecurityError(f"a text of {chars} characters or more, at most {LONGEST_CHARS} are allowed")


def _check_bits(bits: int) -> None:
    if bits > LARGEST_BITS:
        raise SecurityError(f"a number of {bits} bits or more, at most {LARGEST_BITS} are allowed")


def _weigh(value: Any, seen: dict[int, int] | None = None, of_item: int = 2) -> int:
    """At least how many characters a value has when it is written. What is in it twice counts twice, and is gone over
    once."""
    if type(value) in TEXTS:  # most are, and the question below is slow
        return len(value)
    if type(value) in PLAIN or not isinstance(value, (str, bytes, Mapping, Sequence, Set, ItemsView, ValuesView)):
        return 0
    if isinstance(value, (str, bytes)):
        return len(value)
    seen = {} if seen is None else seen
    if id(value) not in seen:
        seen[id(value)] = 0  # for a list that holds itself
        items = (*value, *value.values()) if isinstance(value, Mapping) else value
        seen[id(value)] = sum(of_item + _weigh(item, seen) for item in items)
    return seen[id(value)]


def _as_list(value: Any) -> Any:
    """What a generator yields: it can be looked at once only."""
    return list(value) if isinstance(value, Iterator) else value


def _padded(text: Any, width: Any = 0, *_: Any) -> int:
    return width if isinstance(width, int) else 0


def _replaced(text: Any, old: Any = "", new: Any = "", *_: Any) -> int:
    if not isinstance(text, bytes):
        text, old, new = str(text), str(old), str(new)
    return len(text) + int(text.count(old)) * len(new)


def _joined(separator: Any, items: Any = (), *_: Any) -> int:
    if not isinstance(items, (str, bytes, Mapping, Sequence, Set, ItemsView, ValuesView)):
        return 0
    of_items = len(items) if isinstance(items, (str, bytes)) else _weigh(items, of_item=0)
    return of_items + (len(separator) if isinstance(separator, bytes) else len(str(separator))) * len(items)


def _translated(text: Any, table: Any = (), *_: Any) -> int:
    values = table.values() if isinstance(table, Mapping) else table
    return len(text) * max((len(value) for value in values if isinstance(value, str)), default=1)


def _searched(text: Any, part: Any = None, *_: Any, sep: Any = None, **__: Any) -> int:
    part = part if part is not None else sep
    return len(str(text)) * len(part) // COMPARED_CHARS if isinstance(part, (str, bytes)) else 0


def _strftime_chars(value: Any, text: Any) -> int:
    """Python gives a date's text up to 256 times the room of its format."""
    return 256 * len(text) if isinstance(value, (date, time)) and isinstance(text, str) else 0


def _indented(text: Any, width: Any = 4, *_: Any, **__: Any) -> int:
    return (len(str(text).splitlines()) + 1) * (len(width) if isinstance(width, str) else _padded(text, width))


def _wrapped(text: Any, width: Any = 79, breaks: Any = True, wrapstring: Any = None, *_: Any, **__: Any) -> int:
    return len(str(text)) * len(wrapstring) if isinstance(wrapstring, str) else 0


def _batched(items: Any, linecount: Any = 0, fill_with: Any = None) -> int:
    return linecount * (2 + _weigh(fill_with)) if isinstance(linecount, int) and fill_with is not None else 0


def _rounded(value: Any, precision: Any = 0, *_: Any, **__: Any) -> int:
    _check_bits(4 * abs(precision) if isinstance(precision, int) else 0)  # it is an exponent of ten
    return 0


def _summed(items: Any, attribute: Any = None, start: Any = 0) -> int:
    """Lists are copied at every step."""
    return _weigh(items) * len(items) // 2 if isinstance(start, (list, tuple)) and isinstance(items, list) else 0


def _as_json(value: Any, *args: Any, indent: Any = None, separators: Any = None, **_: Any) -> int:
    """Of a JSON filter, which the two kinds of templates have with other arguments."""
    indent = next((arg for arg in args if isinstance(arg, (int, str)) and not isinstance(arg, bool)), indent)
    of_level = len(indent) if isinstance(indent, str) else _padded("", indent)
    of_item = sum(map(len, separators)) if isinstance(separators, (list, tuple)) else 0
    chars = 0
    if of_level > 0 or of_item > 0:
        for depth in _nested(value):
            chars += of_level * depth + of_item
            _check_chars(chars)
    return chars


def _nested(value: Any, depth: int = 1) -> Iterator[int]:
    """How deep each item of a list or dict is in it."""
    if isinstance(value, (list, tuple, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield depth
            yield from _nested(item, depth + 1)


def _formatted(text: Any, *args: Any, **kwargs: Any) -> int:
    """What `%` makes: the filter `format` gets the values one by one, the operator as one tuple or dict."""
    text = text.decode("latin-1") if isinstance(text, bytes) else str(text)
    values: Any = kwargs or (args[0] if len(args) == 1 else args)
    if text.count("%") > MOST_FIELDS:
        raise SecurityError(f"a format with more than {MOST_FIELDS} fields")
    chars = len(text)
    is_named = False
    for name, sizes in _percent_fields(text):
        if "*" in sizes:
            raise SecurityError("a field whose width is an argument")
        chars += sum(int(size) for size in sizes if size)
        if name is not None and isinstance(values, Mapping):
            is_named = True
            chars += _weigh(values.get(name))
        _check_chars(chars)
    return chars if is_named else chars + _weigh(values)


def _percent_fields(text: str) -> Iterator[tuple[str | None, tuple[str | None, ...]]]:
    """Name, and width and precision, of each field. A name goes on to the parenthesis that closes it."""
    at = text.find("%")
    while at >= 0:
        at += 1
        name = None
        if text.startswith("(", at):
            start, depth = at + 1, 1
            while depth and (paren := re.compile(r"[()]").search(text, at + 1)):
                at = paren.start()
                depth += 1 if paren[0] == "(" else -1
            name, at = text[start:at], at + 1
        field = PERCENT_FIELD.match(text, at)
        assert field is not None, "it matches nothing at all, too"
        yield name, field.groups()
        at = text.find("%", field.end() + 1)


METHOD_CHARS: dict[str, Callable[..., int]] = {
    "center": _padded,
    "expandtabs": lambda text, tabsize=8: text.count(b"\t" if isinstance(text, bytes) else "\t") * tabsize,
    "join": _joined,
    "ljust": _padded,
    "lstrip": _searched,
    "replace": _replaced,
    "rfind": _searched,
    "rindex": _searched,
    "rjust": _padded,
    "rpartition": _searched,
    "rsplit": _searched,
    "rstrip": _searched,
    "strftime": _strftime_chars,
    "strip": _searched,
    "to_bytes": lambda number, length=1, *_, **__: length,
    "translate": _translated,
    "zfill": _padded,
}
FILTER_CHARS: dict[str, Callable[..., int]] = {
    "batch": _batched,
    "center": _padded,
    "format": _formatted,
    "indent": _indented,
    "join": lambda items, d="", *_, **__: _joined(d, items),
    "replace": lambda s, old, new, *_, **__: _replaced(s, old, new),
    "round": _rounded,
    "sum": _summed,
    "tojson": _as_json,
    "trim": lambda value, chars=None: _searched(value, chars),
    "wordwrap": _wrapped,
}
"""At least how many characters the result has, or is worth in time, for what can make far more of what it is given."""
