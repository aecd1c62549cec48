"""Identity of a spec: digests, and differences between two specs by field."""

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from assayline.digests import digest_json

if TYPE_CHECKING:
    from assayline.spec.evaluation import EvalSpec

LONGEST_VALUE_CHARS = 60
MOST_CHANGES = 8


def list_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return one line per field that differs, at most MOST_CHANGES and a count of the rest.

    A list of plain values counts as one field.
    """
    pairs = walk_changes("", before, after)
    lines = [f"{field}: {_show(old)} → {_show(new)}" for field, old, new in pairs]
    more = len(lines) - MOST_CHANGES
    return lines if more <= 0 else [*lines[:MOST_CHANGES], f"and {more} more"]


NOT_SETTINGS = frozenset({"name", "scorers", "gate", "slos", "imported"})
"""Fields that affect neither answers nor speed."""


def list_setting_changes(before_json: str, after_json: str) -> list[str]:
    """Return `list_changes` of two specs in JSON, without fields that affect neither answers nor speed."""
    before, after = (json.loads(text) for text in (before_json, after_json))
    return list_changes(*({key: spec[key] for key in spec if key not in NOT_SETTINGS} for spec in (before, after)))


class Unset:
    """Marker of a field that only one of the two specs has."""


UNSET = Unset()


def walk_changes(prefix: str, before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the dotted fields below `prefix` that differ, with both values; a list of mappings is walked by item."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in sorted(before.keys() | after.keys()):
            field = f"{prefix}.{name}" if prefix else name
            yield from walk_changes(field, before.get(name, UNSET), after.get(name, UNSET))
    elif _has_parts(before) and _has_parts(after):
        yield from walk_changes(prefix, dict(enumerate(before)), dict(enumerate(after)))
    elif before != after or isinstance(before, bool) != isinstance(after, bool):
        yield prefix, before, after


def _has_parts(value: Any) -> bool:
    """Return True for a list of mappings, which is compared item by item."""
    return isinstance(value, list) and any(isinstance(item, Mapping) for item in value)


def _show(value: Any) -> str:
    if value is UNSET:
        return "unset"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST_VALUE_CHARS else f"{text[:LONGEST_VALUE_CHARS]}…"


DEFAULTS = 1
"""Increment it when a default changes. Digests leave out fields with their defaults, so a new field changes none."""

JUDGES = frozenset({"scorers", "gate", "slos", "price"})
"""Fields that judge or price answers without affecting them. Scoring options also changes the requests."""


def spec_hash(spec: "EvalSpec") -> str:
    """Return the digest of the canonical spec, independent of YAML formatting and of prices.

    It excludes ray_address, so that a run can be resumed on another Ray cluster.
    """
    return _digest(spec, {"price"})


def config_id(spec: "EvalSpec", model_id: str) -> str:
    """Return the digest of all fields that affect answers or speed. Runs with the same digest are repeats."""
    asked = {"asks_for_options": True} if spec.asks_for_options else {}
    return _digest(spec, {"name", "model", "revision", *JUDGES}, model_id=model_id, **asked)


def _digest(spec: "EvalSpec", leave_out: set[str], **others: object) -> str:
    fields = spec.model_dump(mode="json", exclude={"ray_address", *leave_out}, exclude_defaults=True)
    return digest_json(_plain_numbers({**fields, "defaults": DEFAULTS, **others}))


def _plain_numbers(value: Any) -> Any:
    """Convert whole floats to integers, because 0.0 and 0 mean the same in a spec."""
    match value:
        case dict():
            return {key: _plain_numbers(item) for key, item in value.items()}
        case list():
            return [_plain_numbers(item) for item in value]
        case float() if value.is_integer():
            return int(value)
    return value


def canonical_json(spec: "EvalSpec") -> str:
    """Return the complete spec as JSON, including defaults, with sorted keys."""
    return json.dumps(spec.model_dump(mode="json"), sort_keys=True, ensure_ascii=False)
