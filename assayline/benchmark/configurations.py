"""The planner of benchmarks: from what was asked for to the cells of a campaign.

They are the combinations of swept fields (`combine_values`), or the points of a profile (`profile.py`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any, get_args

from assayline.benchmark.campaign import (
    Campaign,
    Cell,
    Models,
    Quality,
    alternate,
    can_share_engine,
    find_unfinished,
    make_cell,
    new_campaign,
    read_benchmark,
)
from assayline.benchmark.profile import ENDS, REPEATS, SweepProfile, check_profile, list_points
from assayline.errors import SpecError
from assayline.settings import Settings
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import SpecFile, as_spec, override_spec, parse_stored, parse_value, read_yaml
from assayline.spec.identity import canonical_json
from assayline.spec.suite import SuiteSpec, parse_suite
from assayline.words import nearest

LEAST_RUNS = 5
"""Runs that the view `noise_run` needs."""
AS_GIVEN = "as given"
"""Variant of a benchmark that varies nothing."""


@dataclass(frozen=True, slots=True)
class BenchmarkTask:
    """A spec that is benchmarked, or one evaluation of a suite, which has a name."""

    name: str
    weight: float
    spec: EvalSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkAsk:
    """Words of a command line, a flow's parameters or a Python call that ask for a benchmark. None: not given."""

    spec: EvalSpec | SpecFile | SuiteSpec | Mapping[str, Any] | str | Path | None = None
    """A spec or a suite, or the path of one, with or without overrides of fields of the spec."""
    repeats: int | None = None
    sweep: Mapping[str, Sequence[Any]] | None = None
    """Values by dotted field."""
    profile: str | None = None
    """`sweep` or `slo`."""
    slo: str | None = None
    points: int | None = None
    arrival: str | None = None
    seconds: float | None = None
    requests: int | None = None
    baseline: str | None = None
    """A variant such as model=base, or one of its values."""
    quality: Quality | None = None
    resume: str = "auto"
    """`auto`, `never`, or the id of a benchmark, which excludes all else."""

    @property
    def given(self) -> dict[str, Any]:
        """The fields that were given, except `resume`."""
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "resume"}
        return {name: value for name, value in values.items() if value is not None}

    def choose_profile(self) -> SweepProfile | None:
        """Return the profile with its options. Raises SpecError for options that do not belong to it."""
        options = {name: value for name, value in self.given.items() if name in OF_PROFILE}
        if self.profile is None and options:
            raise SpecError(f"--{next(iter(options))} needs a profile. hint: add --profile sweep, or omit the option.")
        if (self.profile == "slo") != ("slo" in options) or (self.profile == "slo" and "points" in options):
            raise SpecError("--profile slo needs --slo NAME, and both exclude --points. hint: pass an SLO of the spec.")
        return SweepProfile(**options) if self.profile else None


OF_PROFILE = ("slo", "points", "arrival", "seconds", "requests")
"""Fields that configure a profile."""


def plan_benchmark(ask: BenchmarkAsk, settings: Settings) -> Campaign:
    """Plan a benchmark, or read the one to resume: by its id, or the newest unfinished one of an equal ask.

    With several configurations, the prefix cache is off unless the spec or the sweep sets it, because repeats of a
    prompt set would be answered from it. One alone measures noise: it is as given, so that its config_id is that of its
    other runs, and two of its runs share an engine. Raises SpecError, ModelError or StoreError.
    """
    settings.pass_on_token()
    if ask.resume not in ("auto", "never"):
        if ask.given:
            raise SpecError("--resume uses the benchmark's own plan. hint: leave out SPEC, fields and sweep options.")
        return read_benchmark(ask.resume, settings)
    if ask.spec is None:
        raise SpecError("No benchmark given. hint: pass a SPEC, or --resume BENCHMARK_ID.")
    tasks, models = load_tasks(ask.spec)
    campaign = _plan_cells(ask, tasks, models)
    unfinished = None if ask.resume == "never" else find_unfinished(campaign, settings)
    return unfinished or campaign


def load_tasks(
    given: EvalSpec | SpecFile | SuiteSpec | Mapping[str, Any] | str | Path,
) -> tuple[list[BenchmarkTask], list[str]]:
    """Load a spec as the only task, or the evaluations of a suite, with its models. Raises SpecError."""
    overrides = given.overrides if isinstance(given, SpecFile) else {}
    found: object = given.file if isinstance(given, SpecFile) else given
    if isinstance(found, Path) or (isinstance(found, str) and not found.startswith("@")):
        found = read_yaml(Path(found))
    if isinstance(found, Mapping) and "evaluations" in found:
        found = parse_suite(found, getattr(given, "file", str(given)))
    if not isinstance(found, SuiteSpec):
        return [BenchmarkTask("", 1.0, as_spec(given))], []  # type: ignore[arg-type]
    specs = [override_spec(one.load(None), overrides) for one in found.evaluations]
    tasks = [
        BenchmarkTask(one.name or spec.name, one.weight, spec)
        for one, spec in zip(found.evaluations, specs, strict=True)
    ]
    if len({task.name for task in tasks}) < len(tasks):
        raise SpecError(f"Two evaluations of suite {found.name} have the same name. hint: set `name` for each.")
    return tasks, found.models


def _plan_cells(ask: BenchmarkAsk, tasks: Sequence[BenchmarkTask], models: Sequence[str]) -> Campaign:
    sweep = dict(ask.sweep or {})
    if models and "model" not in sweep:
        sweep = {"model": models, **sweep}
    profile = ask.choose_profile()
    repeats = ask.repeats if ask.repeats is not None else 1 if profile else REPEATS
    if repeats < 1:
        raise SpecError(f"--repeats {repeats} is below 1. hint: pass at least 1; a comparison needs at least 3.")
    if profile:
        if len(tasks) > 1:
            raise SpecError("--profile needs one spec, not a suite. hint: pass the spec of one evaluation.")
        check_profile(profile, tasks[0].spec)
        if sweep:
            raise SpecError("--profile and --sweep both vary the spec. hint: pass one of them, or run two benchmarks.")
    if (quality := ask.quality or "accuracy") not in get_args(Quality):
        raise SpecError(f"--quality {quality} is not a quality: {nearest(quality, list(get_args(Quality)))}")
    if quality == "kl" and (profile or len(tasks) > 1 or not sweep):
        raise SpecError("--quality kl needs one spec and --sweep: engines read the answers of one configuration.")
    swept = {field: [_as_text(field, value) for value in values] for field, values in sweep.items()}
    is_alone = len(tasks) == 1 and not swept and not profile
    bases = tasks if is_alone else [replace(task, spec=_turn_cache_off(task.spec)) for task in tasks]
    variants = list_points(bases[0].spec, profile) if profile else combine_values(swept)
    cells = list_cells(bases, variants, repeats)
    return new_campaign(
        "benchmark",
        bases[0].name or bases[0].spec.name,
        cells,
        alternate(cells, repeats),
        runs_per_engine=None if profile else 1 + is_alone if can_share_engine(cells) else 0,
        profile=profile,
        swept_json=canonical_json(bases[0].spec) if profile else None,
        baseline=_find_baseline(ask.baseline, [label for label, _ in variants]),
        quality=quality,
    )


def _turn_cache_off(spec: EvalSpec) -> EvalSpec:
    """Turn the prefix cache off unless it is set. An external server keeps its own arguments."""
    is_kept = spec.engine.is_remote or "enable_prefix_caching" in spec.engine.args
    return spec if is_kept else override_spec(spec, {"engine.args.enable_prefix_caching": False})


def _find_baseline(wanted: str | None, labels: Sequence[str]) -> str | None:
    """Return the label of the baseline. Raises SpecError unless exactly one has it as label or value."""
    found = [label for label in labels if wanted in (label, label.partition("=")[2])]
    if wanted is not None and len(found) != 1:
        raise SpecError(f"--baseline {wanted!r} is not a configuration: {nearest(wanted, list(labels))}")
    return found[0] if found else None


def add_rates(campaign: Campaign, profile: SweepProfile) -> Campaign:
    """Return the campaign of a load sweep with the cells of the rates that `profile` has."""
    base, repeats = parse_stored(str(campaign.swept_json)), campaign.cells[0].repeats
    cells = list_cells([BenchmarkTask("", 1.0, base)], list_points(base, profile), repeats)
    order = [*alternate(cells[:ENDS], repeats), *alternate(cells[ENDS:], repeats)]
    return replace(campaign, profile=profile, cells=cells, order=[cell.key for cell in order])


def combine_values(sweep: Mapping[str, Sequence[str]]) -> list[tuple[str, dict[str, str]]]:
    """Return every combination with its label; the first field varies slowest."""
    combinations = [dict(zip(sweep, values, strict=True)) for values in product(*sweep.values())]
    return [
        (", ".join(f"{field}={value}" for field, value in combination.items()) or AS_GIVEN, combination)
        for combination in combinations
    ]


def list_cells(
    tasks: Sequence[BenchmarkTask], variants: Sequence[tuple[str, Mapping[str, str]]], repeats: int
) -> list[Cell]:
    """Build the cell of each variant and task; those of one variant, which may share an engine, together.

    Raises SpecError or ModelError.
    """
    found: dict[str, Cell] = {}
    models: Models = {}
    for label, overrides in variants:
        values = {field: parse_value(field, text) for field, text in overrides.items()}
        for task in tasks:
            varied = override_spec(task.spec, values, origin=label)
            name = f"{task.name or task.spec.name} {label if overrides else 'benchmark'}"
            spec = varied.model_copy(update={"name": name})
            cell = make_cell(spec, label, models, task.name, repeats=repeats, weight=task.weight)
            if other := found.get(cell.config_id):
                raise SpecError(
                    f"{label!r} and {other.label!r} of the sweep are the same configuration: the fields that "
                    "differ affect neither answers nor speed. hint: remove one of them."
                )
            found[cell.config_id] = cell
    return list(found.values())


def parse_sweep(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Parse texts such as `field=a,b,c` or `field=[YAML list]` to values by field. Raises SpecError."""
    sweep: dict[str, list[Any]] = {}
    for text in texts:
        field, _, rest = text.partition("=")
        field = field.strip()
        values = _split_values(field, rest)
        if not field or not values:
            raise SpecError(
                f"--sweep {text!r} is not valid. hint: pass FIELD=VALUE,VALUE, such as engine.max_concurrency=16,32,64."
            )
        if field in sweep:
            raise SpecError(f"--sweep names {field} twice. hint: pass all its values at once, separated by commas.")
        sweep[field] = values
    return sweep


def _split_values(field: str, text: str) -> list[Any]:
    if text.strip().startswith("["):
        values = parse_value(field, text)
        return values if isinstance(values, list) else []
    texts = [value.strip() for value in text.split(",")]
    return [parse_value(field, value) for value in texts] if all(texts) else []


def _as_text(field: str, value: Any) -> str:
    """Return the text that `parse_value` reads as the value."""
    is_plain = isinstance(value, str) and parse_value(field, value) == value
    return str(value) if is_plain else json.dumps(value, ensure_ascii=False)
