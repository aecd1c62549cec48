"""A benchmark: configurations of one spec, each run several times, in an order that is fair to all of them.

They are combinations of fields (`sweep.py`), or the points of a profile (`sweep_profile.py`). The plan is a file in a
folder of its own, written before the first run, so that a killed benchmark goes on where it stopped: what is done is
told by the manifests of its runs.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from assayline.clock import RunClock
from assayline.durable import replace_file
from assayline.engines.arguments import check_arguments
from assayline.errors import SpecError, StoreError
from assayline.evaluation import new_run_id, plan_run
from assayline.manifest import list_manifests
from assayline.settings import Settings
from assayline.spec import EvalSpec
from assayline.spec_file import canonical_json, config_id, override_spec, parse_spec
from assayline.sweep import combine_values
from assayline.sweep_profile import ENDS, SweepProfile, check_profile, list_points, space_rates

PLAN_NAME = "benchmark.json"
CACHING = "engine.args.enable_prefix_caching"
WARM_UP = "engine.warm_up"


@dataclass(frozen=True, slots=True)
class Configuration:
    """One point of the sweep."""

    label: str
    spec: EvalSpec
    config_id: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What a benchmark is."""

    benchmark_id: str
    spec_json: str
    """The spec that the sweep varies, with caching and warm-up settled."""
    sweep: dict[str, list[str]]
    """Values, as YAML text, by dotted field."""
    repeats: int
    config_ids: list[str]
    profile: SweepProfile | None = None
    """Set where the configurations are points of a load sweep; then there is no `sweep`."""

    @property
    def planned(self) -> int:
        """Runs that cannot be listed yet, as the rates of a sweep are not known before its ends are measured."""
        return self.repeats * self.profile.points if self.profile and not self.profile.rates_per_s else 0

    @property
    def total(self) -> int:
        """Runs that it is made of."""
        return self.repeats * len(self.config_ids) + self.planned


def plan_benchmark(
    spec: EvalSpec,
    sweep: Mapping[str, Sequence[str]],
    repeats: int,
    settings: Settings,
    asked: Sequence[str] = (),
    profile: SweepProfile | None = None,
) -> tuple[Plan, list[Configuration]]:
    """Settles and checks every configuration. `asked` are fields that a person set on purpose.

    The engine is warmed up and the prefix cache is off, unless asked otherwise: repeats of one prompt set would be
    answered from the cache. Raises SpecError or ModelError.
    """
    if repeats < 1:
        raise SpecError(f"--repeats was given {repeats}, expected 1 or more; five are needed for a comparison.")
    if profile:
        check_profile(profile, spec)
        if sweep:
            raise SpecError("--profile and --sweep both say what is varied. Give one of them, or make two benchmarks.")
    settled = {}
    is_asked = CACHING in {*asked, *sweep} or "enable_prefix_caching" in spec.engine.args
    if not is_asked and not spec.engine.is_remote:  # which has the arguments that it was started with
        settled[CACHING] = "false"
    if WARM_UP not in {*asked, *sweep}:
        settled[WARM_UP] = "true"
    base = override_spec(spec, settled)
    variants = list_points(base, profile) if profile else combine_values(sweep)
    configurations = list_configurations(base, variants, settings)
    plan = Plan(
        benchmark_id=new_run_id(f"benchmark {spec.name}", RunClock.start()),
        spec_json=canonical_json(base),
        sweep={field: list(values) for field, values in sweep.items()},
        repeats=repeats,
        config_ids=[configuration.config_id for configuration in configurations],
        profile=profile,
    )
    return plan, configurations


def add_rates(plan: Plan, achieved: Sequence[float | None], settings: Settings) -> tuple[Plan, list[Configuration]]:
    """The plan of a sweep with the rates between the requests per second that its two ends achieved.

    Raises RunFailedError where there are none.
    """
    assert plan.profile is not None, "only a sweep has rates"
    profile = space_rates(plan.profile, *achieved)
    base = parse_spec(json.loads(plan.spec_json))
    configurations = list_configurations(base, list_points(base, profile), settings)
    return replace(plan, profile=profile, config_ids=[one.config_id for one in configurations]), configurations


def list_configurations(
    base: EvalSpec, variants: Sequence[tuple[str, Mapping[str, str]]], settings: Settings
) -> list[Configuration]:
    """The spec with each of the variants laid over it. Raises SpecError or ModelError."""
    found: dict[str, Configuration] = {}
    models: dict[tuple[str, str | None], str] = {}
    for label, overrides in variants:
        varied = override_spec(base, overrides, origin=label)
        spec = varied.model_copy(update={"name": f"{base.name} {label}" if overrides else f"{base.name} benchmark"})
        digest = _identify_config(spec, settings, models)
        if digest in found:
            raise SpecError(
                f"The sweep's {label!r} is the same configuration as {found[digest].label!r}: what differs decides "
                "neither answers nor speed. Leave one of the two out."
            )
        found[digest] = Configuration(label, spec, digest)
    return list(found.values())


def _identify_config(spec: EvalSpec, settings: Settings, models: dict[tuple[str, str | None], str]) -> str:
    """Its config_id, once its arguments are checked. The files of a model are read once for all configurations."""
    key = (spec.model, spec.revision)
    if key not in models:
        models[key] = plan_run(spec, settings)[1].model_id
    check_arguments(spec)
    return config_id(spec, models[key])


def order_runs(
    configurations: Sequence[Configuration], repeats: int, profile: SweepProfile | None = None
) -> Iterator[Configuration]:
    """Round after round, every other one backwards: a machine that drifts favours none. A sweep's ends come first."""
    stages = [configurations[:ENDS], configurations[ENDS:]] if profile else [configurations]
    for stage in stages:
        for number in range(repeats):
            yield from stage if number % 2 == 0 else reversed(stage)


def list_left(plan: Plan, configurations: Sequence[Configuration], settings: Settings) -> list[Configuration]:
    """The runs still to do, in order: a completed run of the benchmark counts as the next of its configuration's."""
    done = count_done(plan.benchmark_id, settings)
    left = []
    for configuration in order_runs(configurations, plan.repeats, plan.profile):
        if done[configuration.config_id] > 0:
            done[configuration.config_id] -= 1
        else:
            left.append(configuration)
    return left


def count_left(benchmark_id: str, settings: Settings) -> int | None:
    """How many runs a benchmark has still to do; None where its plan is not at hand."""
    try:
        plan = _parse_plan((benchmark_dir(settings, benchmark_id) / PLAN_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return None
    done = count_done(benchmark_id, settings)
    return plan.total - sum(min(done[config_id], plan.repeats) for config_id in plan.config_ids)


def count_done(benchmark_id: str, settings: Settings) -> Counter[str]:
    """Runs of a benchmark that are completed in one go, by configuration."""
    return Counter(
        str(manifest.config_id)
        for manifest in list_manifests(settings.data_dir / "runs")
        if (manifest.benchmark_id, manifest.state, manifest.attempt) == (benchmark_id, "completed", 1)
    )


def benchmark_dir(settings: Settings, benchmark_id: str) -> Path:
    """Where a benchmark's plan is."""
    return settings.data_dir / "benchmarks" / benchmark_id


def write_plan(plan: Plan, settings: Settings) -> None:
    """Raises StoreError."""
    path = benchmark_dir(settings, plan.benchmark_id) / PLAN_NAME
    text = json.dumps(asdict(plan), indent=2, ensure_ascii=False) + "\n"
    try:
        replace_file(path, lambda file: file.write(text.encode("utf-8", "replace")))
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error}. Free space or fix the folder's rights.") from error


def read_plan(benchmark_id: str, settings: Settings) -> tuple[Plan, list[Configuration]]:
    """A benchmark that was begun. Raises SpecError for an unknown one and for one whose models changed, StoreError."""
    folder = benchmark_dir(settings, benchmark_id)
    known = sorted((path.parent.name for path in folder.parent.glob(f"*/{PLAN_NAME}")), reverse=True)
    if benchmark_id not in known:
        told = f"newest: {', '.join(known[:3])}" if known else "there is none yet"
        raise SpecError(f"There is no benchmark {benchmark_id!r} in {folder.parent} ({told}). Give the id of one.")
    try:
        plan = _parse_plan((folder / PLAN_NAME).read_text(encoding="utf-8"))
        base = json.loads(plan.spec_json)
    except (OSError, ValueError, TypeError) as error:
        raise StoreError(f"{folder / PLAN_NAME} cannot be read: {error}. Put a copy in its place.") from None
    spec = parse_spec(base, origin=str(folder / PLAN_NAME))
    variants = list_points(spec, plan.profile) if plan.profile else combine_values(plan.sweep)
    configurations = list_configurations(spec, variants, settings)
    if [configuration.config_id for configuration in configurations] != plan.config_ids:
        raise SpecError(
            f"Benchmark {benchmark_id} cannot be gone on with: the files of a model, or what this assayline makes of "
            "the spec, are not what they were. Start a new one."
        )
    return plan, configurations


def _parse_plan(text: str) -> Plan:
    plan = Plan(**json.loads(text))
    return replace(plan, profile=SweepProfile(**plan.profile)) if isinstance(plan.profile, dict) else plan
