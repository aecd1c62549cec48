"""A benchmark: configurations of one spec, each run several times, in a balanced order.

They are combinations of fields (`combine_values`), or the points of a profile (`profile.py`). The plan is a file in the
benchmark's folder, written before the first run, so that a killed benchmark resumes where it stopped. The manifests of
its runs have their states.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from assayline.benchmark.plan import (
    PLAN_NAME,
    BenchmarkPlan,
    Configuration,
    benchmark_dir,
    combine_values,
    count_done,
    find_unfinished,
    read_plan_file,
)
from assayline.benchmark.profile import (
    ENDS,
    NOISE_RUNS,
    REPEATS,
    SweepProfile,
    check_profile,
    list_points,
)
from assayline.clock import RunClock
from assayline.errors import SpecError
from assayline.load.arrivals import check_trace
from assayline.model import identify_spec_model
from assayline.runs.manifest import new_run_id
from assayline.settings import Settings
from assayline.spec.checks import check_arguments
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import SpecFile, as_spec, override_spec, parse_spec, parse_value, read_yaml
from assayline.spec.identity import canonical_json, config_id
from assayline.spec.suite import SuiteSpec, parse_suite
from assayline.store.scoring import check_scorers
from assayline.words import nearest

LEAST_RUNS = 5
"""Runs that the view `noise_run` needs."""


@dataclass(frozen=True, slots=True)
class BenchmarkTask:
    """One evaluation of a suite that is benchmarked."""

    name: str
    weight: float
    spec: EvalSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a command line, a flow's parameters or a Python call asks of a benchmark. None: not given."""

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
    noise: bool = False
    baseline: str | None = None
    """A variant such as model=base, or one of its values."""
    resume: str = "auto"
    """`auto`, `never`, or the id of a benchmark, which excludes all else."""

    @property
    def given(self) -> dict[str, Any]:
        """The fields that were given, except `resume`."""
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "resume"}
        return {name: value for name, value in values.items() if value is not None and value is not False}

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


def plan_benchmark(ask: Ask, settings: Settings) -> tuple[BenchmarkPlan, list[Configuration]]:
    """Plan a benchmark, or read the one to resume: by its id, or the newest that was asked for alike and is unfinished.

    The prefix cache is off unless the spec or the sweep sets it, because repeats of a prompt set would be answered from
    it. Raises SpecError, ModelError or StoreError.
    """
    settings.pass_on_token()
    if ask.resume not in ("auto", "never"):
        if ask.given:
            raise SpecError("--resume uses the benchmark's own plan. hint: leave out SPEC, fields and sweep options.")
        return read_plan(ask.resume, settings)
    if ask.spec is None:
        raise SpecError("No benchmark given. hint: pass a SPEC, or --resume BENCHMARK_ID.")
    tasks, models = load_tasks(ask.spec)
    plan = _plan_noise(ask, tasks) if ask.noise else _plan_sweep(ask, tasks, models)
    unfinished = None if ask.resume == "never" else find_unfinished(plan[0], settings)
    return read_plan(unfinished, settings) if unfinished else plan


def load_tasks(
    given: EvalSpec | SpecFile | SuiteSpec | Mapping[str, Any] | str | Path,
) -> tuple[list[BenchmarkTask], list[str]]:
    """Load a spec as the only task, or the evaluations of a suite, with its models. Raises SpecError."""
    overrides: Mapping[str, Any] = {}
    found: object = given
    if isinstance(found, SpecFile):
        found, overrides = found.file, found.overrides
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


def _plan_sweep(
    ask: Ask, tasks: Sequence[BenchmarkTask], models: Sequence[str]
) -> tuple[BenchmarkPlan, list[Configuration]]:
    sweep = dict(ask.sweep or {})
    if models and "model" not in sweep:
        sweep = {"model": models, **sweep}
    profile = ask.choose_profile()
    repeats = ask.repeats if ask.repeats is not None else 1 if profile else REPEATS
    if repeats < 1:
        raise SpecError(f"--repeats {repeats} is below 1. hint: pass at least 1; a comparison needs at least 5.")
    if profile:
        if len(tasks) > 1:
            raise SpecError("--profile needs one spec, not a suite. hint: pass the spec of one evaluation.")
        check_profile(profile, tasks[0].spec)
        if sweep:
            raise SpecError("--profile and --sweep both vary the spec. hint: pass one of them, or run two benchmarks.")
    swept = {field: [_as_text(field, value) for value in values] for field, values in sweep.items()}
    bases = [replace(task, spec=_turn_cache_off(task.spec)) for task in tasks]
    variants = list_points(bases[0].spec, profile) if profile else combine_values(swept)
    configurations = list_configurations(bases, variants)
    plan = BenchmarkPlan(
        benchmark_id=new_run_id(f"benchmark {bases[0].name or bases[0].spec.name}", RunClock.start()),
        spec_json=canonical_json(bases[0].spec),
        sweep=swept,
        repeats=repeats,
        config_ids=[configuration.config_id for configuration in configurations],
        profile=profile,
        baseline=_find_baseline(ask.baseline, [label for label, _ in variants]),
        tasks=[
            {"name": base.name, "weight": base.weight, "spec_json": canonical_json(base.spec)}
            for base in bases
            if base.name
        ],
    )
    return plan, configurations


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


def _plan_noise(ask: Ask, tasks: Sequence[BenchmarkTask]) -> tuple[BenchmarkPlan, list[Configuration]]:
    """Plan runs of the spec as given, so that their config_id is that of its other runs. Two share an engine.

    Engines of servers, of several workers and on Ray are not shared.
    """
    if len(tasks) > 1:
        raise SpecError("--noise measures one spec, not a suite. hint: pass the spec of one evaluation.")
    if ask.sweep or ask.choose_profile():
        raise SpecError("--noise measures one configuration. hint: leave out the sweep and the profile.")
    spec, runs = tasks[0].spec, NOISE_RUNS if ask.repeats is None else ask.repeats
    if runs < LEAST_RUNS:
        raise SpecError(f"--repeats {runs} is below {LEAST_RUNS}, too few runs to measure noise. hint: pass 10.")
    configurations = list_configurations([BenchmarkTask("", 1.0, spec)], combine_values({}))
    plan = BenchmarkPlan(
        benchmark_id=new_run_id(f"noise {spec.name}", RunClock.start()),
        spec_json=canonical_json(spec),
        sweep={},
        repeats=runs,
        config_ids=[configuration.config_id for configuration in configurations],
        runs_per_engine=2 if can_share_engine(spec) else 1,
    )
    return plan, configurations


def can_share_engine(spec: EvalSpec) -> bool:
    """Return whether another run can use an engine of this spec, and it is the only one of its run."""
    return spec.engine.is_shareable and (spec.workers, spec.runner) == (1, "local")


def replace_profile(plan: BenchmarkPlan, profile: SweepProfile) -> tuple[BenchmarkPlan, list[Configuration]]:
    """Return the plan with another profile, such as one with more rates, and its configurations."""
    base = parse_spec(json.loads(plan.spec_json))
    configurations = list_configurations([BenchmarkTask("", 1.0, base)], list_points(base, profile))
    return replace(plan, profile=profile, config_ids=[one.config_id for one in configurations]), configurations


def list_configurations(
    tasks: Sequence[BenchmarkTask], variants: Sequence[tuple[str, Mapping[str, str]]]
) -> list[Configuration]:
    """Build the configuration of each variant and task; those of one variant, which may share an engine, together.

    Raises SpecError or ModelError.
    """
    found: dict[str, Configuration] = {}
    models: dict[tuple[str, str | None, str], str] = {}
    for label, overrides in variants:
        values = {field: parse_value(field, text) for field, text in overrides.items()}
        for task in tasks:
            varied = override_spec(task.spec, values, origin=label)
            name = f"{task.name or task.spec.name} {label if overrides else 'benchmark'}"
            spec = varied.model_copy(update={"name": name})
            digest = identify_config(spec, models)
            if digest in found:
                raise SpecError(
                    f"{label!r} and {found[digest].label!r} of the sweep are the same configuration: the fields that "
                    "differ affect neither answers nor speed. hint: remove one of them."
                )
            found[digest] = Configuration(label, spec, digest, task.name)
    return list(found.values())


def identify_config(spec: EvalSpec, models: dict[tuple[str, str | None, str], str]) -> str:
    """Check a spec and return its config_id. The files of a model are read once for all configurations."""
    check_arguments(spec)
    check_scorers(spec.scorers or [])
    check_trace(spec.load, spec.prompts.source)
    key = (spec.model, spec.revision, spec.model_name)
    if key not in models:
        models[key] = identify_spec_model(spec).model_id
    return config_id(spec, models[key])


def order_runs(
    configurations: Sequence[Configuration], repeats: int, profile: SweepProfile | None = None
) -> Iterator[Configuration]:
    """Yield rounds in alternating direction, so that a drifting machine favours none. A sweep's ends come first."""
    stages = [configurations[:ENDS], configurations[ENDS:]] if profile else [configurations]
    for stage in stages:
        for number in range(repeats):
            yield from stage if number % 2 == 0 else reversed(stage)


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


def list_left(plan: BenchmarkPlan, configurations: Sequence[Configuration], settings: Settings) -> list[Configuration]:
    """List the runs still to do, in order. Each completed run counts as the next of its configuration."""
    done = count_done(plan.benchmark_id, settings)
    left = []
    for configuration in order_runs(configurations, plan.repeats, plan.profile):
        if done[configuration.config_id] > 0:
            done[configuration.config_id] -= 1
        else:
            left.append(configuration)
    return left


def read_plan(benchmark_id: str, settings: Settings) -> tuple[BenchmarkPlan, list[Configuration]]:
    """Read an existing benchmark. Raises SpecError for an unknown one or changed models, and StoreError."""
    plan, base = read_plan_file(benchmark_id, settings)
    origin = str(benchmark_dir(settings, benchmark_id) / PLAN_NAME)
    tasks = [
        BenchmarkTask(one["name"], one["weight"], parse_spec(json.loads(one["spec_json"]), origin))
        for one in plan.tasks
    ]
    tasks = tasks or [BenchmarkTask("", 1.0, parse_spec(base, origin=origin))]
    variants = list_points(tasks[0].spec, plan.profile) if plan.profile else combine_values(plan.sweep)
    configurations = list_configurations(tasks, variants)
    if [configuration.config_id for configuration in configurations] != plan.config_ids:
        raise SpecError(
            f"Benchmark {benchmark_id} cannot be resumed: the files of a model, or the configurations that this "
            "version of assayline derives from the spec, have changed. hint: start a new benchmark."
        )
    return plan, configurations
