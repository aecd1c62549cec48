"""Identity of a spec: digests, former field names, and differences between two specs by field."""

import copy
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from assayline.digests import digest_json

if TYPE_CHECKING:
    from assayline.spec.evaluation import EvalSpec

RENAMED = {
    "engine.window": "engine.max_concurrency",
    "engine.warm_up": "engine.warmup",
    "engine.recovery.min_batch_size": "engine.recovery.min_concurrency",
    "max_error_fraction": "max_error_share",
}
"""Former and current names of fields. A new spec with a former name is rejected with a hint; a stored one is read.

Digests use the former names, so that runs of earlier versions can be resumed and count as repeats."""

FORMER_VALUES = {"gate.confidence": {"proven": "required", "observed": "significant"}}
"""Former values of fields, with the current ones by which a stored spec is read. Digests use `proven`, as before."""

REMOVED = {"load.stop_when_saturated": False, "engine.recovery.grow": False}
"""Removed fields. A stored spec is read without them, and digests have them with these values, as before."""

LONGEST_VALUE_CHARS = 60
MOST_CHANGES = 8


def list_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return one line per field that differs, at most MOST_CHANGES and a count of the rest.

    A list of plain values counts as one field.
    """
    pairs = _walk("", _use_current(before), _use_current(after))
    lines = [f"{field}: {_show(old)} → {_show(new)}" for field, old, new in pairs]
    more = len(lines) - MOST_CHANGES
    return lines if more <= 0 else [*lines[:MOST_CHANGES], f"and {more} more"]


NOT_SETTINGS = frozenset({"name", "scorers", "gate", "slos", "imported"})
"""Fields that affect neither answers nor speed."""


def list_setting_changes(before_json: str, after_json: str) -> list[str]:
    """Return `list_changes` of two specs in JSON, without fields that affect neither answers nor speed."""
    before, after = (json.loads(text) for text in (before_json, after_json))
    return list_changes(*({key: spec[key] for key in spec if key not in NOT_SETTINGS} for spec in (before, after)))


class _Unset:
    """Marker of a field that only one of the two specs has."""


_UNSET = _Unset()


def _walk(prefix: str, before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in sorted(before.keys() | after.keys()):
            field = f"{prefix}.{name}" if prefix else name
            yield from _walk(field, before.get(name, _UNSET), after.get(name, _UNSET))
    elif _has_parts(before) and _has_parts(after):
        yield from _walk(prefix, dict(enumerate(before)), dict(enumerate(after)))
    elif before != after or isinstance(before, bool) != isinstance(after, bool):
        yield prefix, before, after


def _has_parts(value: Any) -> bool:
    """Return True for a list of mappings, which is compared item by item."""
    return isinstance(value, list) and any(isinstance(item, Mapping) for item in value)


def _show(value: Any) -> str:
    if value is _UNSET:
        return "unset"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST_VALUE_CHARS else f"{text[:LONGEST_VALUE_CHARS]}…"


JUDGES = frozenset({"scorers", "gate", "slos", "price"})
"""Fields that judge or price answers without affecting them. Scoring options also changes the requests."""


def spec_hash(spec: "EvalSpec") -> str:
    """Return the digest of the canonical spec, independent of YAML formatting and of prices.

    It excludes ray_address, so that a run can be resumed on another Ray cluster.
    """
    fields = spec.model_dump(mode="json", exclude={"price"})
    return _digest({**fields, "ray_address": None})


def config_id(spec: "EvalSpec", model_id: str) -> str:
    """Return the digest of all fields that affect answers or speed. Runs with the same digest are repeats."""
    fields = spec.model_dump(mode="json", exclude={"name", "model", "revision", *JUDGES})
    asked = {"asks_for_options": True} if spec.asks_for_options else {}
    return _digest({**fields, **asked, "ray_address": None, "model_id": model_id})


def use_current_names(spec_json: str) -> str:
    """Return a stored spec, perhaps of an earlier version, with current field names."""
    return json.dumps(_use_current(json.loads(spec_json)), sort_keys=True, ensure_ascii=False)


def _use_current(spec: Mapping[str, Any]) -> dict[str, Any]:
    current = _rename(spec, RENAMED, FORMER_VALUES)
    for field in ("gate.stop", *REMOVED):
        *parents, name = field.split(".")
        _find_part(current, parents).pop(name, None)
    return current


def _find_part(spec: dict[str, Any], parents: list[str]) -> dict[str, Any]:
    """Return the mapping below these fields; an empty one if the spec has none."""
    part: Any = spec
    for parent in parents:
        part = part.get(parent) if isinstance(part, dict) else None
    return part if isinstance(part, dict) else {}


def _rename(
    spec: Mapping[str, Any], names: Mapping[str, str], values: Mapping[str, Mapping[str, str]]
) -> dict[str, Any]:
    renamed = copy.deepcopy(dict(spec))
    for given in (*names, *values):
        *parents, name = given.split(".")
        part = _find_part(renamed, parents)
        if name in part:
            value = part.pop(name)
            changed = values.get(given, {}).get(value, value) if isinstance(value, str) else value
            part[names.get(given, given).rpartition(".")[2]] = changed
    return renamed


def _digest(fields: Mapping[str, Any]) -> str:
    names = {current: former for former, current in RENAMED.items()}
    former = _rename(fields, names, {"gate.confidence": {"required": "proven"}})
    for field, default in REMOVED.items():
        *parents, name = field.split(".")
        if part := _find_part(former, parents):
            part[name] = default
    return digest_json(_plain_numbers(former))


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
