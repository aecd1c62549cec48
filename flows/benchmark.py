"""benchmark: repeats and sweeps of one spec, for speeds that can be compared, and latency under load.

    assayline benchmark SPEC [--repeats 5] [--sweep engine.max_concurrency=16,32,64]... [--dry-run] [--FIELD VALUE ...]
    assayline benchmark SPEC --profile sweep [--points 8] [--arrival poisson] [--seconds 30]
    assayline benchmark --resume BENCHMARK_ID

Each repeat is a run of its own, by the flow `evaluate`; runs follow one another, so there is one engine at a time on a
device. Repeats have engines of their own, the points of a profile share one. A killed benchmark resumes where
it stopped.
"""

import contextlib
from typing import Any, Literal

from prefect import flow
from prefect.runtime import flow_run

from assayline.benchmark.configurations import plan_benchmark, read_plan
from assayline.benchmark.plan import Configuration, Plan, benchmark_dir, write_plan
from assayline.benchmark.profile import choose_profile, choose_repeats
from assayline.engines.parking import park_engines
from assayline.errors import RunFailedError, SpecError, StoreError
from assayline.runs.locks import lock_run, name_holder
from assayline.settings import Settings, load_settings
from flows.benchmark_end import conclude_benchmark
from flows.benchmark_runs import do_all_runs
from flows.evaluate import SpecParameter, as_spec, check_deployed_spec
from flows.live.logs import speak_in_sentences


def name_benchmark() -> str:
    """The run's name in the UI."""
    try:
        resume, spec = flow_run.parameters.get("resume"), flow_run.parameters.get("spec")
        return str(resume or f"benchmark {as_spec(spec).name}")
    except Exception:
        return "benchmark"  # the flow itself says what is wrong with its spec


@flow(name="benchmark", flow_run_name=name_benchmark, persist_result=False)
def benchmark(
    spec: SpecParameter | None = None,
    repeats: int | None = None,
    sweep: dict[str, list[Any]] | None = None,
    resume: str | None = None,
    profile: Literal["sweep"] | None = None,
    points: int | None = None,
    arrival: Literal["constant", "poisson"] | None = None,
    seconds: float | None = None,
    requests: int | None = None,
) -> dict[str, Any]:
    """Runs every configuration several times, in turn, and compares them with the first; or sweeps the load.

    Args:
        spec: the spec, the path of a YAML file with one, or {file, overrides} to set some of its fields.
        repeats: runs per configuration (default 5, which a comparison needs; 1 for a profile's points).
        sweep: values by dotted field: {"engine.max_concurrency": [16, 32]}.
        resume: id of a benchmark to resume; then without the others.
        profile: sweep measures latency from one request at a time to all at once.
        points: rates between the two ends of the sweep (default 8).
        arrival: how a rate's requests come (default: as in the spec's load, or constant).
        seconds: longest sending per point of the sweep.
        requests: most requests per point of the sweep.
    """
    settings = load_settings()
    settings.pass_on_token()
    if not settings.tracebacks:
        speak_in_sentences()
    if resume is not None:
        plan, configurations = read_plan(resume, settings)
    elif spec is not None:
        check_deployed_spec(spec)
        options = {"points": points, "arrival": arrival, "seconds": seconds, "requests": requests}
        chosen = choose_profile(profile, {name: value for name, value in options.items() if value is not None})
        asked = choose_repeats(repeats, chosen)
        plan, configurations = plan_benchmark(as_spec(spec), sweep or {}, asked, profile=chosen)
        write_plan(plan, settings)
    else:
        raise SpecError("A benchmark needs a spec, or the id of a benchmark to resume.")
    return run_plan(plan, configurations, settings)


def run_plan(plan: Plan, configurations: list[Configuration], settings: Settings) -> dict[str, Any]:
    """Does the runs that are left. Raises RunFailedError if a configuration does not complete, others measured."""
    folder = benchmark_dir(settings, plan.benchmark_id)
    lock = lock_run(folder)
    if lock is None:
        raise StoreError(f"Benchmark {plan.benchmark_id} is in use by {name_holder(folder)}. Wait for its end.")
    try:
        with park_engines() if plan.profile else contextlib.nullcontext():
            plan, configurations, failed = do_all_runs(plan, configurations, settings)
    finally:
        lock.release()
    result = conclude_benchmark(plan, configurations, settings)
    if failed:
        told = " ".join(f"{label}: {reason}" for label, reason in failed.items())
        raise RunFailedError(
            f"Benchmark {plan.benchmark_id} has configurations that did not complete. {told} The others are measured; "
            f"`assayline benchmark --resume {plan.benchmark_id}` tries again."
        )
    return result
