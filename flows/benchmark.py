"""benchmark: measure configurations of a spec over repeats, or latency under load.

    assayline benchmark SPEC [--repeats 5] [--sweep engine.max_concurrency=16,32,64]... [--dry-run] [--FIELD VALUE ...]
    assayline benchmark SPEC --profile sweep [--points 8] [--arrival poisson] [--seconds 30]
    assayline benchmark SPEC --profile slo --slo interactive [--arrival poisson] [--seconds 30]
    assayline benchmark --resume BENCHMARK_ID | SPEC --fresh

Each repeat is a separate run of the flow `evaluate`. Runs are sequential, so a device has one engine at a time. Each
repeat opens its own engine; the points of a profile share one, and so do two consecutive runs of a lone configuration.
The same command resumes a killed benchmark where it stopped. An interrupted pair is not completed: the remaining runs
form new pairs, so an engine may have a single run.
"""

from typing import Any, Literal

from prefect import flow

from assayline.api import operations
from assayline.benchmark.campaign import Quality
from assayline.flows.evaluate import Resume, SpecParameter, check_deployed_spec, name_by, open_front
from assayline.flows.live.reporting import end
from assayline.run.campaign import BenchmarkResult
from assayline.spec.file import as_spec
from assayline.store.manifest import AUTO

name_benchmark = name_by(
    lambda given: f"benchmark {as_spec(given['spec']).name}" if given.get("spec") else given["resume"], "benchmark"
)


@flow(name="benchmark", flow_run_name=name_benchmark, persist_result=False)
def benchmark(
    spec: SpecParameter | None = None,
    repeats: int | None = None,
    sweep: dict[str, list[Any]] | None = None,
    resume: Resume = AUTO,
    profile: Literal["sweep", "slo"] | None = None,
    slo: str | None = None,
    points: int | None = None,
    arrival: Literal["constant", "poisson"] | None = None,
    seconds: float | None = None,
    requests: int | None = None,
    baseline: str | None = None,
    quality: Quality | None = None,
) -> BenchmarkResult:
    """Run every configuration several times, interleaved, and compare them; or sweep the load.

    Args:
        spec: a spec, the path of one or of a suite, or {file, overrides} to override fields of a spec.
        repeats: runs per configuration (default 5, the minimum for a comparison; 1 with a profile).
        sweep: values by dotted field: {"engine.max_concurrency": [16, 32]}.
        resume: `auto` goes on with the newest benchmark of the same arguments, if it is unfinished; `never` starts a
            new one; the id of a benchmark resumes it, and excludes all other arguments.
        profile: `sweep` measures latency under load, from one request at a time to all at once;
            `slo` finds the highest rate at which an SLO holds.
        slo: name of that SLO.
        points: rates between the two ends of the sweep (default 8).
        arrival: arrival pattern of each rate (default: the spec's load, or constant).
        seconds: maximum seconds of sending per sweep point.
        requests: maximum requests per sweep point.
        baseline: configuration to compare with, such as model=base (default: the first in quality, else the best).
        quality: `kl` compares probabilities instead of scores: after the runs, each engine reads answers of the
            baseline, by `gate.reread`.
    """
    asked = locals()
    if spec is not None:
        check_deployed_spec(spec)
    result = operations.benchmark(**asked, front=open_front())
    return end(result.headline, result)
