"""A benchmark: configurations of one spec, each run several times, in an order that is fair to all of them.

Its plan is a file in a folder of its own, written before the first run, so that a killed benchmark goes on where it
stopped: what is done is told by the manifests of its runs.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import yaml

from assayline.clock import RunClock
from assayline.durable import replace_file
from assayline.engines.arguments import check_arguments
from assayline.errors import SpecError, StoreError
from assayline.evaluation import new_run_id, plan_run
from assayline.manifest import list_manifests
from assayline.settings import Settings
from assayline.spec import EvalSpec
from assayline.spec_file import canonical_json, config_id, override_spec, parse_spec

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


def plan_benchmark(
    spec: EvalSpec, sweep: Mapping[str, Sequence[str]], repeats: int, settings: Settings, asked: Sequence[str] = ()
) -> tuple[Plan, list[Configuration]]:
    """Settles and checks every configuration. `asked` are fields that a person set on purpose.

    The engine is warmed up and the prefix cache is off, unless asked otherwise: repeats of one prompt set would be
    answered from the cache. Raises SpecError or ModelError.
    """
    if repeats < 1:
        raise SpecError(f"--repeats was given {repeats}, expected 1 or more; five are needed for a comparison.")
    settled = {}
    if CACHING not in {*asked, *sweep} and "enable_prefix_caching" not in spec.engine.args:
        settled[CACHING] = "false"
    if WARM_UP not in {*asked, *sweep}:
        settled[WARM_UP] = "true"
    base = override_spec(spec, settled)
    configurations = list_configurations(base, sweep, settings)
    plan = Plan(
        benchmark_id=new_run_id(f"benchmark {spec.name}", RunClock.start()),
        spec_json=canonical_json(base),
        sweep={field: list(values) for field, values in sweep.items()},
        repeats=repeats,
        config_ids=[configuration.config_id for configuration in configurations],
    )
    return plan, configurations


def list_configurations(base: EvalSpec, sweep: Mapping[str, Sequence[str]], settings: Settings) -> list[Configuration]:
    """Every combination of the sweep's values, the first field varying slowest. Raises SpecError or ModelError."""
    found: dict[str, Configuration] = {}
    models: dict[tuple[str, str | None], str] = {}
    for values in product(*sweep.values()):
        overrides = dict(zip(sweep, values, strict=True))
        label = ", ".join(f"{field}={value}" for field, value in overrides.items()) or "as given"
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


def order_runs(configurations: Sequence[Configuration], repeats: int) -> Iterator[Configuration]:
    """Round after round, every other one backwards: a machine that drifts favours none of them."""
    for number in range(repeats):
        yield from configurations if number % 2 == 0 else reversed(configurations)


def list_left(plan: Plan, configurations: Sequence[Configuration], settings: Settings) -> list[Configuration]:
    """The runs still to do, in order: a completed run of the benchmark counts as the next of its configuration's."""
    done = count_done(plan.benchmark_id, settings)
    left = []
    for configuration in order_runs(configurations, plan.repeats):
        if done[configuration.config_id] > 0:
            done[configuration.config_id] -= 1
        else:
            left.append(configuration)
    return left


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
        plan = Plan(**json.loads((folder / PLAN_NAME).read_text(encoding="utf-8")))
        base = json.loads(plan.spec_json)
    except (OSError, ValueError, TypeError) as error:
        raise StoreError(f"{folder / PLAN_NAME} cannot be read: {error}. Put a copy in its place.") from None
    configurations = list_configurations(parse_spec(base, origin=str(folder / PLAN_NAME)), plan.sweep, settings)
    if [configuration.config_id for configuration in configurations] != plan.config_ids:
        raise SpecError(
            f"Benchmark {benchmark_id} cannot be gone on with: the files of a model, or what this assayline makes of "
            "the spec, are not what they were. Start a new one."
        )
    return plan, configurations


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


def _split_values(text: str) -> list[str]:
    if not text.strip().startswith("["):
        return [value.strip() for value in text.split(",")]
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError:
        return []
    return [value if isinstance(value, str) else json.dumps(value) for value in values]
