"""YAML as specs, suites, rubrics and options have it: the core schema of version 1.2, and each key once.

PyYAML reads version 1.1, in which `1e-5` is text, `no` is false, `1:30` is 90 and the last of two equal keys counts.
Merge keys (`<<`) are kept.
"""

import re
from typing import Any

import yaml

TAGS = {
    "null": (r"~|null|Null|NULL|", "~nN"),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
    "merge": ("<<", "<"),
}
"""Pattern of an unquoted text by the name of its type, and its first characters."""


class DuplicateKeyError(yaml.MarkedYAMLError):
    """A mapping has the same key twice."""


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012, PyYAML's own

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        lines: dict[Any, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            name = key.value if key.tag.endswith(":merge") else self.construct_object(key)
            if name in lines:
                problem = f"the key {key.value!r} is already on line {lines[name]}. hint: merge the two, or remove one"
                raise DuplicateKeyError(problem=problem, problem_mark=key.start_mark)
            lines[name] = key.start_mark.line + 1
        return node

    def construct_whole_number(self, node: Any) -> int:
        text = self.construct_scalar(node)
        return int(text, 0 if text[:2] in ("0o", "0x") else 10)


for _name, (_pattern, _first) in TAGS.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(f"^({_pattern})$"), [*_first])
_Loader.yaml_implicit_resolvers[""] = _Loader.yaml_implicit_resolvers["~"]  # an empty value is null
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_whole_number)


def load_yaml(text: str) -> Any:
    """Return the value of a YAML text. Raises yaml.YAMLError, and DuplicateKeyError with both lines."""
    return _load(text, _Loader)


def load_texts(text: str) -> Any:
    """Return the value of a YAML text with every scalar as it is written: `007` and `1e5` are text."""
    return _load(text, yaml.BaseLoader)


def _load(text: str, loader: Any) -> Any:
    try:
        return yaml.load(text, loader)
    except ValueError as error:
        raise yaml.YAMLError(str(error)) from None
