"""--sweep: values of fields, and their combinations, each of them a configuration of a benchmark."""

import json
from collections.abc import Mapping, Sequence
from itertools import product

import yaml

from assayline.errors import SpecError


def parse_sweep(texts: Sequence[str]) -> dict[str, list[str]]:
    """`field=a,b,c` or `field=[YAML list]`, each of them, as values by field. Raises SpecError."""
    sweep: dict[str, list[str]] = {}
    for text in texts:
        field, equals, rest = text.partition("=")
        values = _split_values(rest) if equals else []
        if not field.strip() or not all(values) or not values:
            raise SpecError(f"--sweep was given {text!r}, expected FIELD=VALUE,VALUE such as engine.window=16,32,64.")
        if field in sweep:
            raise SpecError(f"--sweep names {field} twice. Give all its values at once, separated by commas.")
        sweep[field.strip()] = values
    return sweep


def combine_values(sweep: Mapping[str, Sequence[str]]) -> list[tuple[str, dict[str, str]]]:
    """Every combination with its label, the first field varying slowest."""
    combinations = [dict(zip(sweep, values, strict=True)) for values in product(*sweep.values())]
    return [
        (", ".join(f"{field}={value}" for field, value in combination.items()) or "as given", combination)
        for combination in combinations
    ]


def _split_values(text: str) -> list[str]:
    if not text.strip().startswith("["):
        return [value.strip() for value in text.split(",")]
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError:
        return []
    return [value if isinstance(value, str) else json.dumps(value) for value in values]
