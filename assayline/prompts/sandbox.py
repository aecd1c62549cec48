"""The sandbox for every template, those of specs and chat templates: Jinja's own, with limits on size and time.

A template is a program, and a model's chat template is a foreign one. Jinja's sandbox keeps it away from Python's
internals and bounds `range`, but lets it multiply a text to the size of the machine, and loop for ever. Two limits:

- A value that a template makes is refused when it is larger than LONGEST_CHARS or LARGEST_BITS, with everything in it.
  Steps whose result can be much larger than what they are given, or take much longer, are looked at before they run
  (`_cost`): nothing can stop a single step of C.
- Whatever takes many steps is stopped after MOST_SECONDS or MOST_BYTES: the turns of a loop, each call and each value
  that is made looks at the clock (`_Clock`), and raises RenderStoppedError over a limit.

    guard = RenderGuard("prompts.template")
    text = guard.run(lambda: template.render(row))
"""

import datetime
import math
import re
import threading
import time
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence, Set, ValuesView
from decimal import Decimal
from functools import update_wrapper, wraps
from itertools import chain
from typing import Any, TypeVar

import psutil
from jinja2 import Environment, nodes, pass_environment, pass_eval_context
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS, make_attrgetter
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEscapeFormatter, SandboxedFormatter
from jinja2.utils import Namespace, generate_lorem_ipsum
from jinja2.visitor import NodeTransformer
from markupsafe import Markup

from assayline.errors import PromptError
from assayline.prompts.row import RowError

LONGEST_CHARS = 2**23
"""Characters of a text, or of a list with all its texts: two million tokens or so."""
LARGEST_BITS = 2**16
CALLERS = frozenset({"_loop_vars", "_block_vars"})
"""Arguments that Jinja adds to each call in a loop or a block."""
COMPARED_CHARS = 64
"""Searches that compare every character with every other get this many of them for one character of LONGEST_CHARS."""
PERCENT_FIELD = re.compile(r"%(?:\([^()]*\))?[-+ #0]*(\d*)\.?(\d*)")
OPAQUE_FIELD = re.compile(r"%(?:\([^()]*\))?[-+ #0\d.]*\*|%\([^()]*\(")

MOST_SECONDS = 10.0
"""A prompt takes less than a millisecond, one of megabytes less than a second."""
MOST_BYTES = 2**30
"""How much larger the process may become while one prompt renders; looked at where that takes over LOOK_INTERVAL_S."""
LOOK_INTERVAL_S = 0.25
TURNS_PER_LOOK = 64
"""Turns of a loop between two looks at the clock; its calls and values look, too."""
MOST_STOPPED = 3
"""Prompts that may be stopped before the run is: with a million of them it would take months."""

Made = TypeVar("Made")


class BoundedSandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, in which every value that is made is bounded."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.code_generator_class = _Generator
        self.optimized = False  # it computes while it compiles
        self.filters = _Filters({**self.filters, "join": _join, "sum": _sum, "bound": bound, "watch": _watched})

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Bounds().visit(super()._parse(source, name, filename))
        tree.set_environment(self)
        return tree

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """Join the output of a template, a macro or a block."""
        return "".join(_counted(pieces))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Return an operator's result. Raises SecurityError if it would be too large."""
        if operator == "%" and isinstance(left, (str, bytes)):
            _check_format(left, right)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * right)
        elif operator == "*":
            for items, times in ((left, right), (right, left)):
                if isinstance(times, int) and isinstance(items, (str, bytes, list, tuple)):
                    _check_chars(_weigh(items) * times)
        return bound(super().call_binop(context, operator, left, right))

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Return a call's result. Raises SecurityError if it is too large, or a method would take too long."""
        CLOCK.look()
        named = {name: value for name, value in kwargs.items() if name not in CALLERS}
        if args or named:
            bound([*args, *named.values()])  # a macro can keep them as a tuple and a dict
        name, owner = getattr(function, "__name__", ""), getattr(function, "__self__", None)
        if isinstance(owner, (str, bytes, int, datetime.date, datetime.time)) or function is generate_lorem_ipsum:
            if name == "join":
                args = tuple(list(_counted(items, owner)) for items in args)
            _check_chars(_cost(name, owner, *args, **named))
        return bound(super().call(context, function, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format`, as Jinja lets it run, and within bounds."""
        if super().wrap_str_format(value) is None:
            return None
        text, takes_mapping = value.__self__, value.__name__ == "format_map"

        def bounded(*args: Any, **kwargs: Any) -> str:
            is_markup = isinstance(text, Markup)
            formatter = _EscapeFormatter(self, escape=text.escape) if is_markup else _Formatter(self)
            if takes_mapping:
                (kwargs,), args = args, ()
            return type(text)(formatter.vformat(text, args, kwargs))  # type: ignore[no-any-return]

        return update_wrapper(bounded, value)


class _Bounds(NodeTransformer):
    """Turn `~` and literal lists, tuples and dicts into bounded filters, and watch the turns of loops."""

    def visit_List(self, node: nodes.List | nodes.Dict | nodes.Tuple) -> nodes.Node:
        return _filter("bound", self.generic_visit(node))

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self.visit_List(node) if node.ctx == "load" else node  # else, names that are assigned to

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter("join", nodes.List(node.nodes, lineno=node.lineno))

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _filter("watch", node.iter)
        return node


def _filter(name: str, node: nodes.Node) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Generator(CodeGenerator):
    """Computes nothing while it compiles: results of filters would be joined without a question."""

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        if not isinstance(node, nodes.TemplateData):
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)


class _Formatter(SandboxedFormatter):
    """For one text: its fields together are not too long."""

    chars = 0

    def format_field(self, value: Any, format_spec: str) -> Any:
        widths = sum(int(digits) for digits in re.findall(r"\d+", format_spec))
        _check_chars(self.chars + widths)
        if isinstance(value, (datetime.date, datetime.time)):
            _check_chars(_cost("strftime", value, format_spec))
        text = super().format_field(value, format_spec)
        self.chars += len(text)
        _check_chars(self.chars)
        return text


class _EscapeFormatter(_Formatter, SandboxedEscapeFormatter):
    """The same for texts of which HTML is escaped."""


class _Filters(dict[str, Callable[..., Any]]):
    """Filters, each within bounds, also those that are added later."""

    def __init__(self, filters: Mapping[str, Callable[..., Any]]) -> None:
        super().__init__()
        for name, unbound in filters.items():
            self[name] = unbound

    def __setitem__(self, name: str, unbound: Callable[..., Any]) -> None:
        skipped = int(hasattr(unbound, "jinja_pass_arg"))  # Jinja hands over a context first

        @wraps(unbound)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            _check_chars(_cost(name, *args[skipped:], **kwargs))
            return bound(unbound(*args, **kwargs))

        super().__setitem__(name, bounded)


@pass_eval_context
def _join(context: nodes.EvalContext, items: Iterable[Any], d: Any = "", attribute: Any = None) -> Any:
    """Jinja's filter, whose items are counted one by one."""
    if attribute is not None:
        items = map(make_attrgetter(context.environment, attribute), items)
    return FILTERS["join"](context, _counted(items, d), d)


@pass_environment
def _sum(environment: Environment, items: Iterable[Any], attribute: Any = None, start: Any = 0) -> Any:
    """Jinja's filter, whose steps are watched: lists are copied at every one."""
    return FILTERS["sum"](environment, _watched(items), attribute, start)


def _watched(items: Iterable[Any]) -> Iterator[Any]:
    for turn, item in enumerate(items):
        if turn % TURNS_PER_LOOK == 0:
            CLOCK.look()
        yield item


def _counted(items: Iterable[Any], separator: Any = "") -> Iterator[Any]:
    """Yield the items to join. Raises SecurityError if they are too long together."""
    between = len(separator if isinstance(separator, bytes) else str(separator))
    chars = 0
    for item in items:
        chars += _weigh(item) + between
        _check_chars(chars - between)
        yield item


def bound(made: Any) -> Any:
    """Return a value that a template made. Raises SecurityError if it is too large."""
    CLOCK.look()
    if isinstance(made, int):
        _check_bits(made.bit_length())
    elif isinstance(made, Decimal):
        _check_bits(4 * abs(made.adjusted()))
    else:
        _check_chars(_weigh(made))
    return made


def _check_chars(chars: int) -> None:
    if chars > LONGEST_CHARS:
        raise SecurityError(f"a text of {chars} characters or more, at most {LONGEST_CHARS} are allowed")


def _check_bits(bits: int) -> None:
    if bits > LARGEST_BITS:
        raise SecurityError(f"a number of {bits} bits or more, at most {LARGEST_BITS} are allowed")


def _weigh(value: Any, seen: dict[int, int] | None = None) -> int:
    """At least how many characters a value has when it is written. What is in it twice counts twice, and is gone over
    once."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if type(value) is int:
        return value.bit_length() // 4
    if isinstance(value, Namespace):
        value = value._Namespace__attrs  # type: ignore[attr-defined]
    if not isinstance(value, (Mapping, Sequence, Set, ItemsView, ValuesView)) or isinstance(value, range):
        return 0
    seen = {} if seen is None else seen
    if id(value) not in seen:
        seen[id(value)] = 0  # for a list that holds itself
        items = chain(value, value.values()) if isinstance(value, Mapping) else value
        if isinstance(value, ItemsView):  # its pairs are made as they are asked for: an id says nothing
            items = chain.from_iterable(value)
        seen[id(value)] = sum(2 + _weigh(item, seen) for item in items)
    return seen[id(value)]


def _cost(name: str, given: Any = None, *args: Any, **kwargs: Any) -> int:
    """At least how many characters a filter or a method makes of what it is given, or what its time is worth in them,
    where that can be far more than what it is given."""
    others = [*args, *kwargs.values()]
    largest = max((abs(other) if isinstance(other, int) else _weigh(other) for other in others), default=0)
    match name:
        case "batch" | "center" | "ljust" | "rjust" | "slice" | "to_bytes" | "zfill":
            return largest
        case "expandtabs" | "translate":
            return len(given) * largest
        case "format":
            _check_format(str(given), kwargs or args)
        case "generate_lorem_ipsum":  # Jinja's `lipsum`: a number of paragraphs, and of words in each
            return 1000 * math.prod(max(1, other) for other in others if isinstance(other, int))
        case "indent":
            return (len(str(given).splitlines()) + 1) * largest
        case "lstrip" | "rfind" | "rindex" | "rpartition" | "rsplit" | "rstrip" | "strip" | "trim":
            return len(str(given)) * largest // COMPARED_CHARS
        case "replace":
            return _replaced(given, *args, **kwargs)
        case "round":  # an exponent of ten
            _check_bits(4 * largest)
        case "strftime":  # Python gives a date's text up to 256 times the room of its format
            return 256 * largest
        case "tojson":
            return largest * _indents(given)
        case "wordwrap":
            return len(str(given)) * max((len(other) for other in others if isinstance(other, str)), default=0)
    return 0


def _replaced(text: Any, old: Any = "", new: Any = "", *_: Any, **__: Any) -> int:
    if not isinstance(text, bytes):
        text, old, new = str(text), str(old), str(new)
    return len(text) + int(text.count(old)) * len(new)


def _indents(value: Any, depth: int = 1) -> int:
    """How many indents there are when a value is written as JSON, an item a line."""
    if not isinstance(value, (list, tuple, dict)):
        return 0
    items = value.values() if isinstance(value, dict) else value
    return sum(depth + _indents(item, depth + 1) for item in items)


def _check_format(text: str | bytes, values: Any) -> None:
    """Raise SecurityError if `%` would make too long a text; `values` is a value, or a tuple or dict of them."""
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    if OPAQUE_FIELD.search(text):
        raise SecurityError("a field whose width is an argument, or whose name has parentheses")
    widths = sum(int(size) for field in PERCENT_FIELD.finditer(text) for size in field.groups() if size)
    times = text.count("%") if isinstance(values, Mapping) else 1  # a name can be there more than once
    _check_chars(len(text) + widths + times * _weigh(values))


class RenderStoppedError(Exception):
    """A template went over a limit of time or memory."""

    def __init__(self) -> None:
        super().__init__(f"took more than {MOST_SECONDS:g} s or {MOST_BYTES // 2**20} MiB and was stopped")


class RenderGuard:
    """Renders one template for one prompt after another, within limits."""

    def __init__(self, name: str) -> None:
        """`name` is what messages call the template."""
        self._name = name
        self._stopped = 0

    def run(self, render: Callable[[], Made]) -> Made:
        """Return the result of `render`. Raises RowError if it was stopped, PromptError if too many were."""
        CLOCK.start()
        try:
            return render()
        except RenderStoppedError as error:
            self._stopped += 1
            if self._stopped < MOST_STOPPED:
                raise RowError(f"{self._name} {error}.", "template_error") from None
            raise PromptError(
                f"{self._name} {error}, {self._stopped} times by now. Look for loops in it that do not end, or take "
                "out the rows that are too large for it."
            ) from None
        finally:
            CLOCK.stop()


class _Clock(threading.local):
    """How long the template of this thread has been rendered, and how much larger the process has become meanwhile."""

    def __init__(self) -> None:
        self.stop()

    def start(self) -> None:
        """Begin a render."""
        self._started_s = self._looked_s = time.monotonic()
        self._first_bytes: int | None = None

    def stop(self) -> None:
        """Stop the clock: nothing is rendered in this thread now."""
        self._looked_s = math.inf

    def look(self) -> None:
        """Raise RenderStoppedError if the render is over a limit, and again at later looks if it is caught."""
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_INTERVAL_S:
            return
        self._looked_s = now_s
        process_bytes = psutil.Process().memory_info().rss
        self._first_bytes = self._first_bytes or process_bytes
        if now_s - self._started_s > MOST_SECONDS or process_bytes - self._first_bytes > MOST_BYTES:
            raise RenderStoppedError


CLOCK = _Clock()
