"""A benchmark: configurations of one spec, each run several times, in a balanced order.

They are combinations of fields (`combine_values`), or the points of a profile (`profile.py`). The plan is a file in the
benchmark's folder, written before the first run, so that a killed benchmark resumes where it stopped. The manifests of
its runs have their states.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from assayline.spec.suite import load_suite
from assayline.store.scoring import check_scorers
from assayline.words import nearest

CACHING = "engine.args.enable_prefix_caching"
WARM_UP = "engine.warmup"
LEAST_RUNS = 5
"""Runs that the view `noise_run` needs."""


@dataclass(frozen=True, slots=True)
class BenchmarkTask:
    """One evaluation of a suite that is benchmarked."""

    name: str
    weight: float
    spec: EvalSpec


def plan_asked(
    given: EvalSpec | SpecFile | str,
    sweep: Mapping[str, Sequence[Any]],
    repeats: int | None,
    profile: SweepProfile | None,
    baseline: str | None,
    settings: Settings,
    *,
    is_noise: bool = False,
    is_fresh: bool = False,
) -> tuple[BenchmarkPlan, list[Configuration]]:
    """Plan a benchmark, or a noise measurement, of a spec or of the path of a spec or suite.

    Returns the newest benchmark of this plan if it is unfinished, unless `is_fresh`. Raises SpecError or ModelError.
    """
    file = SpecFile(file=given) if isinstance(given, str) else given
    tasks, models = load_tasks(file) if isinstance(file, SpecFile) else ([BenchmarkTask("", 1.0, as_spec(file))], [])
    if is_noise:
        if len(tasks) > 1:
            raise SpecError("--noise measures one spec, not a suite. hint: pass the spec of one evaluation.")
        found = plan_noise(tasks[0].spec, repeats, is_varied=bool(sweep or profile))
    else:
        asked = list(file.overrides) if isinstance(file, SpecFile) else []
        varied = {"model": models, **sweep} if models and "model" not in sweep else sweep
        found = plan_benchmark(tasks, varied, repeats, asked, profile, baseline)
    unfinished = None if is_fresh else find_unfinished(found[0], settings)
    return read_plan(unfinished, settings) if unfinished else found


def load_tasks(file: SpecFile) -> tuple[list[BenchmarkTask], list[str]]:
    """Read a spec as the only task, or the evaluations of a suite, with its models. Raises SpecError."""
    data = None if file.file.startswith("@") else read_yaml(Path(file.file))
    if not isinstance(data, dict) or "evaluations" not in data:
        return [BenchmarkTask("", 1.0, file.load())], []
    suite = load_suite(file.file)
    specs = [override_spec(one.load(None), file.overrides) for one in suite.evaluations]
    tasks = [
        BenchmarkTask(one.name or spec.name, one.weight, spec)
        for one, spec in zip(suite.evaluations, specs, strict=True)
    ]
    if len({task.name for task in tasks}) < len(tasks):
        raise SpecError(f"Two evaluations of suite {suite.name} have the same name. hint: set `name` for each.")
    return tasks, suite.models


def plan_benchmark(
    spec: EvalSpec | Sequence[BenchmarkTask],
    sweep: Mapping[str, Sequence[Any]],
    repeats: int | None = None,
    asked: Sequence[str] = (),
    profile: SweepProfile | None = None,
    baseline: str | None = None,
) -> tuple[BenchmarkPlan, list[Configuration]]:
    """Resolve and check every configuration. `sweep` has values by field; `asked` are the fields set explicitly.

    `baseline` is a label such as model=base, or one of its values.
    By default the engine is warmed up and the prefix cache is off, because repeats of a prompt set would be answered
    from the cache. Raises SpecError or ModelError.
    """
    if repeats is None:
        repeats = 1 if profile else REPEATS
    if repeats < 1:
        raise SpecError(f"--repeats {repeats} is below 1. hint: pass at least 1; a comparison needs at least 5.")
    tasks = [BenchmarkTask("", 1.0, spec)] if isinstance(spec, EvalSpec) else list(spec)
    if profile:
        if len(tasks) > 1:
            raise SpecError("--profile needs one spec, not a suite. hint: pass the spec of one evaluation.")
        check_profile(profile, tasks[0].spec)
        if sweep:
            raise SpecError("--profile and --sweep both vary the spec. hint: pass one of them, or run two benchmarks.")
    swept = {field: [_as_text(field, value) for value in values] for field, values in sweep.items()}
    bases = [replace(task, spec=_settle(task.spec, {*asked, *sweep})) for task in tasks]
    variants = list_points(bases[0].spec, profile) if profile else combine_values(swept)
    configurations = list_configurations(bases, variants)
    plan = BenchmarkPlan(
        benchmark_id=new_run_id(f"benchmark {bases[0].name or bases[0].spec.name}", RunClock.start()),
        spec_json=canonical_json(bases[0].spec),
        sweep=swept,
        repeats=repeats,
        config_ids=[configuration.config_id for configuration in configurations],
        profile=profile,
        baseline=_find_baseline(baseline, [label for label, _ in variants]),
        tasks=[
            {"name": base.name, "weight": base.weight, "spec_json": canonical_json(base.spec)}
            for base in bases
            if base.name
        ],
    )
    return plan, configurations


def _settle(spec: EvalSpec, asked: set[str]) -> EvalSpec:
    """Turn the prefix cache off and warm-up on, unless they are set."""
    settled = {}
    is_asked = CACHING in asked or "enable_prefix_caching" in spec.engine.args
    if not is_asked and not spec.engine.is_remote:  # an external server keeps its own arguments
        settled[CACHING] = False
    if WARM_UP not in asked:
        settled[WARM_UP] = True
    return override_spec(spec, settled)


def _find_baseline(wanted: str | None, labels: Sequence[str]) -> str | None:
    """Return the label of the baseline. Raises SpecError unless exactly one has it as label or value."""
    found = [label for label in labels if wanted in (label, label.partition("=")[2])]
    if wanted is not None and len(found) != 1:
        raise SpecError(f"--baseline {wanted!r} is not a configuration: {nearest(wanted, list(labels))}")
    return found[0] if found else None


def plan_noise(
    spec: EvalSpec, runs: int | None = None, *, is_varied: bool = False
) -> tuple[BenchmarkPlan, list[Configuration]]:
    """Plan runs of the spec as given, so that their config_id is that of its other runs. Two share an engine.

    Engines of servers, of several workers and on Ray are not shared. Raises SpecError or ModelError.
    """
    if is_varied:
        raise SpecError("--noise measures one configuration. hint: leave out the sweep and the profile.")
    runs = NOISE_RUNS if runs is None else runs
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
