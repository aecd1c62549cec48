"""The plan of a benchmark: a file in the benchmark's folder, written before the first run.

A killed benchmark is resumed from it. The manifests of its runs have their states.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from assayline.benchmark.profile import ENDS, SweepProfile
from assayline.errors import SpecError, StoreError
from assayline.files import MAKE_ROOM, write_json
from assayline.runs.locks import is_worked_on
from assayline.runs.manifest import list_manifests
from assayline.settings import Settings
from assayline.spec.evaluation import EvalSpec

PLAN_NAME = "benchmark.json"
AS_GIVEN = "as given"
"""Variant of a benchmark that varies nothing."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """One configuration of a benchmark."""

    variant: str
    """The fields that are varied, with their values."""
    spec: EvalSpec
    config_id: str
    task: str = ""
    """Name of the evaluation, of a suite."""

    @property
    def label(self) -> str:
        return f"{self.task} · {self.variant}" if self.task else self.variant

    @property
    def key(self) -> str:
        return self.label


@dataclass(frozen=True, slots=True)
class BenchmarkPlan:
    """The plan of a benchmark."""

    benchmark_id: str
    spec_json: str
    """The spec that the sweep varies, with caching and warm-up resolved."""
    sweep: dict[str, list[str]]
    """Values as YAML text, by dotted field."""
    repeats: int
    config_ids: list[str]
    profile: SweepProfile | None = None
    """Set if the configurations are points of a load sweep; then `sweep` is empty."""
    runs_per_engine: int = 1
    """Consecutive runs that share an engine: 2 in a noise measurement."""
    baseline: str | None = None
    """The variant that the others are compared with, if one was named; else they are compared with the best."""
    tasks: list[dict[str, Any]] = field(default_factory=list)
    """Name, weight and spec (spec_json) of each evaluation of a suite; empty for one spec."""

    @property
    def names(self) -> dict[str, tuple[str, str]]:
        """Task and variant of each configuration, by its config_id; empty with a profile."""
        tasks = [str(task["name"]) for task in self.tasks] or [str(json.loads(self.spec_json)["name"])]
        named = ((task, variant) for variant, _ in combine_values(self.sweep) for task in tasks)
        return {} if self.profile else dict(zip(self.config_ids, named, strict=True))

    @property
    def planned(self) -> int:
        """Runs that cannot be listed yet, because the rates of a sweep are unknown until its ends are measured."""
        profile = self.profile
        return self.repeats * profile.points if profile and not profile.slo and not profile.rates_per_s else 0

    @property
    def total(self) -> int:
        """Total number of runs."""
        return self.repeats * len(self.config_ids) + self.planned


def combine_values(sweep: Mapping[str, Sequence[str]]) -> list[tuple[str, dict[str, str]]]:
    """Return every combination with its label; the first field varies slowest."""
    combinations = [dict(zip(sweep, values, strict=True)) for values in product(*sweep.values())]
    return [
        (", ".join(f"{field}={value}" for field, value in combination.items()) or AS_GIVEN, combination)
        for combination in combinations
    ]


def find_plan(benchmark_id: str, settings: Settings) -> BenchmarkPlan | None:
    """Read a plan; None if it cannot be read, for example because the database came without the folder."""
    try:
        return _parse_plan((benchmark_dir(settings, benchmark_id) / PLAN_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return None


def count_left(benchmark_id: str, settings: Settings) -> int | None:
    """Return the number of runs still to do; None if the plan cannot be read."""
    plan = find_plan(benchmark_id, settings)
    if plan is None:
        return None
    done = count_done(benchmark_id, settings)
    return plan.total - sum(min(done[config_id], plan.repeats) for config_id in plan.config_ids)


def find_unfinished(plan: BenchmarkPlan, settings: Settings) -> str | None:
    """Return the id of the newest benchmark that was asked for like `plan`, if it has runs left and no process does it.

    Rates that a profile chose are not asked for.
    """

    def describe(one: BenchmarkPlan) -> str:
        asked = {**asdict(one), "benchmark_id": None}
        if one.profile:
            asked |= {"profile": asdict(replace(one.profile, rates_per_s=[])), "config_ids": one.config_ids[:ENDS]}
        return json.dumps(asked)

    for folder in sorted(benchmark_dir(settings, "").glob("*"), reverse=True):
        known = find_plan(folder.name, settings)
        if known and describe(known) == describe(plan) and not is_worked_on(folder):
            return folder.name if count_left(folder.name, settings) or not (folder / "report.html").exists() else None
    return None


def count_done(benchmark_id: str, settings: Settings) -> Counter[str]:
    """Count the runs of a benchmark that completed in one attempt, by configuration."""
    return Counter(
        str(manifest.config_id)
        for manifest in list_manifests(settings.data_dir / "runs")
        if (manifest.benchmark_id, manifest.state, manifest.attempt) == (benchmark_id, "completed", 1)
    )


def benchmark_dir(settings: Settings, benchmark_id: str) -> Path:
    """Return the folder of a benchmark."""
    return settings.data_dir / "benchmarks" / benchmark_id


def write_plan(plan: BenchmarkPlan, settings: Settings) -> None:
    """Write the plan to its file. Raises StoreError."""
    write_json(benchmark_dir(settings, plan.benchmark_id) / PLAN_NAME, asdict(plan), MAKE_ROOM)


def read_plan_file(benchmark_id: str, settings: Settings) -> tuple[BenchmarkPlan, Any]:
    """Read the plan of a benchmark and its spec as data. Raises SpecError for an unknown one, and StoreError."""
    folder = benchmark_dir(settings, benchmark_id)
    known = sorted((path.parent.name for path in folder.parent.glob(f"*/{PLAN_NAME}")), reverse=True)
    if benchmark_id not in known:
        told = f"newest: {', '.join(known[:3])}" if known else "there is none yet"
        raise SpecError(
            f"There is no benchmark {benchmark_id!r} in {folder.parent} ({told}). hint: pass an existing id."
        )
    try:
        plan = _parse_plan((folder / PLAN_NAME).read_text(encoding="utf-8"))
        return plan, json.loads(plan.spec_json)
    except (OSError, ValueError, TypeError) as error:
        raise StoreError(
            f"{folder / PLAN_NAME} cannot be read: {error}. hint: restore the file, or start a new benchmark."
        ) from None


def _parse_plan(text: str) -> BenchmarkPlan:
    plan = BenchmarkPlan(**json.loads(text))
    return replace(plan, profile=SweepProfile(**plan.profile)) if isinstance(plan.profile, dict) else plan
