"""The planner of bisections: from what was asked for to candidates, each a spec.

They are the values of an ordered list, or subsets of the fields in which two specs differ. The ends are the first and
the last value, or the good spec without and with all of these fields.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from assayline.benchmark.campaign import Cell, Models, make_cell
from assayline.errors import SpecError
from assayline.spec.criteria import SpeedMetric
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import override_spec
from assayline.spec.identity import walk_changes
from assayline.stats.bisect import (
    CONFIDENCE,
    MOST_FIELDS,
    MOST_PLACES,
    Hypotheses,
    list_fields,
    list_places,
    list_subsets,
)
from assayline.words import nearest

KL = "kl"
ACCURACY = "accuracy"
SPEED = "output_tokens_per_s"
SENSORS = (KL, ACCURACY, *get_args(SpeedMetric))
METHOD = ("prompts", "chat", "scorers", "reasoning", "engine.args.tokenizer")
"""Beginnings of fields whose change makes scores another measurement: they are named, and kept as in the good spec."""
WITHOUT_EFFECT = ("name", "gate", "slos", "price", "max_error_share", "ray_address", "shard_requests")
RUNS_PER_STEP = 3


@dataclass(frozen=True, kw_only=True)
class Bisection:
    """The plan of a bisection."""

    good: EvalSpec
    names: list[str]
    """Values of the list in order, or fields that differ: one of these did it."""
    candidates: Mapping[str, Mapping[str, Any]]
    """Changes of the good spec by the name of a candidate, in the order of the hypotheses."""
    ends: Mapping[str, Mapping[str, Any]]
    hypotheses: Hypotheses
    method: Sequence[str] = ()
    """Fields of the method that differ."""
    sensors: Sequence[str] = (KL, ACCURACY, SPEED)
    confidence: float = CONFIDENCE
    max_runs: int = 0

    @property
    def is_sampled(self) -> bool:
        """Return whether a repeated run has other answers."""
        sampling = self.good.sampling
        return sampling.get("temperature") != 0 and sampling.get("seed") is None and not self.good.asks_for_options

    def make_spec(self, name: str) -> EvalSpec:
        """Return the spec of a candidate or an end. Raises SpecError."""
        changes = {**self.candidates, **self.ends}[name]
        return override_spec(self.good, {**changes, "name": f"{self.good.name} {name}"}, name)

    def make_ends(self, models: Models) -> list[Cell]:
        """Check both ends, and return their cells. Raises SpecError or ModelError."""
        ends = [make_cell(self.make_spec(end), end, models, is_measured=False) for end in self.ends]
        if ends[0].config_id == ends[1].config_id:
            raise SpecError("Both ends are the same configuration. hint: pass two that differ.")
        return ends

    def name_cause(self, index: int) -> str:
        kind, places = self.hypotheses.names[index]
        words = {"one": "", "together": "only together: ", "each": "each alone: "}[kind]
        return words + " and ".join(self.names[place] for place in places)


def plan_bisection(
    good: EvalSpec,
    bad: EvalSpec | None = None,
    over: Mapping[str, Sequence[Any]] | None = None,
    metric: str | None = None,
    confidence: float = CONFIDENCE,
    max_runs: int | None = None,
) -> Bisection:
    """Plan a bisection of two specs, or of a spec over an ordered list of values. Raises SpecError."""
    if metric is not None and metric not in SENSORS:
        raise SpecError(f"--metric {metric} is not a sensor: {nearest(metric, list(SENSORS))}")
    if bad is not None and not over:
        plan = _compare_specs(good, bad)
    elif over and bad is None and len(over) == 1:
        [(field, values)] = over.items()
        candidates = {f"{field}={value}": {field: value} for value in values}
        if not 2 <= len(candidates) == len(values) <= MOST_PLACES:
            raise SpecError(f"--over {field} needs 2 to {MOST_PLACES} values, all different, the good one first.")
        names, ends = [*candidates], dict([*candidates.items()][:: len(values) - 1])
        plan = Bisection(good=good, names=names, candidates=candidates, ends=ends, hypotheses=list_places(len(values)))
    else:
        raise SpecError("Nothing to bisect. hint: pass two specs, or one spec and one --over FIELD=FILE.")
    most = RUNS_PER_STEP * (2 + (len(plan.names) - 1).bit_length()) if max_runs is None else max_runs
    if most < 2 or not 0.5 < confidence < 1:
        raise SpecError("Expected --max-runs of at least 2, one of each end, and --confidence between 0.5 and 1.")
    return replace(plan, max_runs=most, confidence=confidence, sensors=[metric] if metric else plan.sensors)


def _compare_specs(good: EvalSpec, bad: EvalSpec) -> Bisection:
    changes: dict[str, dict[str, Any]] = {}
    method: list[str] = []
    for field, _, new in walk_changes("", good.model_dump(mode="json"), bad.model_dump(mode="json")):
        if field.startswith(METHOD):
            method.append(field)
        elif not field.startswith(WITHOUT_EFFECT):
            changes[field] = {field: new}
    for field in ("revision", "adapter") if "model" in changes else ():
        changes["model"] |= changes.pop(field, {})
    if not 1 <= len(changes) <= MOST_FIELDS:
        words = f"; only the method differs: {', '.join(method)}" if method and not changes else ""
        raise SpecError(f"The specs differ in {len(changes)} fields, not 1 to {MOST_FIELDS}{words}.")
    names, subsets = [*changes], list_subsets(len(changes))

    def change(fields: Sequence[str]) -> dict[str, Any]:
        return {name: value for field in fields for name, value in changes[field].items()}

    chosen = [[name for name, has in zip(names, subset, strict=True) if has] for subset in subsets]
    candidates = {", ".join(fields): change(fields) for fields in chosen}
    ends, hypotheses = {"good spec": {}, "bad spec": change(names)}, list_fields(subsets)
    return Bisection(good=good, names=names, candidates=candidates, ends=ends, hypotheses=hypotheses, method=method)
