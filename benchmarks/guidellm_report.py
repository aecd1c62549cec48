"""Our export in GuideLLM's own hands: its classes load the file, and its code computes from our requests what we wrote.

    python -m benchmarks.guidellm_report [FILE]

Without a file, a run that nobody ran is exported (`benchmarks.invented_runs`). Held against each other are the fields
that it derives from a request's moments, and every distribution of a value per request; then `guidellm export` writes
its console tables, HTML and CSV from the file. Exit code 1: something differs, but for percentiles at whose rank its
sums of probabilities are rounded.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from assayline.export.make import export_run
from assayline.settings import Settings
from assayline.store.database import connect
from benchmarks.invented_runs import invent_runs
from benchmarks.peer_environment import prepare_environment
from benchmarks.peer_guidellm import GUIDELLM

CHECK = """
import json, math, sys
from guidellm.benchmark.schemas import GenerativeBenchmarksReport
from guidellm.schemas import StatusDistributionSummary

PLAIN = ("request_latency", "request_dispatch_delay", "request_scheduled_latency", "time_to_first_token_ms",
         "time_to_first_output_token_ms")
VALUES = {name: (lambda one, name=name: getattr(one, name)) for name in PLAIN} | {
    "prompt_token_count": lambda one: one.prompt_tokens,
    "output_token_count": lambda one: one.output_tokens,
    "total_token_count": lambda one: one.total_tokens,
    "time_per_output_token_ms": lambda one: (one.time_per_output_token_ms, one.output_tokens),
    "inter_token_latency_ms": lambda one: one.inter_token_latency_ms and (one.inter_token_latency_ms,
                                                                          one.output_tokens - 1.0),
}

def close(ours, theirs):
    return ours == theirs or math.isclose(ours, theirs, rel_tol=1e-4, abs_tol=1e-3)

(benchmark,) = GenerativeBenchmarksReport.load_file(sys.argv[1]).benchmarks
(written,) = json.load(open(sys.argv[1]))["benchmarks"]
differences = []
for ours, one in zip(written["requests"]["successful"], benchmark.requests.successful, strict=True):
    theirs = one.model_dump(exclude={"info", "input_metrics", "output_metrics"})
    differences += [(name, ours[name], theirs[name]) for name in ours.keys() & theirs.keys()
                    if ours[name] is not theirs[name] and not close(ours[name], theirs[name])]
for name, read in VALUES.items():
    ours = getattr(benchmark.metrics, name)
    theirs = StatusDistributionSummary.from_values_function(
        function=read, successful=benchmark.requests.successful, incomplete=[], errored=[])
    if ours is None or not ours.successful.count:
        continue
    ours, theirs = ours.successful.model_dump(), theirs.successful.model_dump()
    percentiles = ours.pop("percentiles"), theirs.pop("percentiles")
    if "token_count" not in name:  # of seconds hardly two are alike, and rounding decides which of them are
        del theirs["mode"]
    differences += [(name, of, ours[of], theirs[of]) for of in theirs if not close(ours[of], theirs[of])]
    edges = [of for of in percentiles[0] if not close(percentiles[0][of], percentiles[1][of])]
    print(f"{name}: {ours['count']} values, mean {ours['mean']:.6g}; percentiles at another rank: {edges or 'none'}")
print(f"{len(benchmark.requests.successful)} requests; differences: {differences[:5] or 'none'}")
sys.exit(bool(differences))
"""


def invent_report(folder: Path) -> Path:
    """The report of a run that nobody ran."""
    with connect(folder / "assayline.duckdb", 10) as connection:
        invent_runs(connection, 1, 2_000)
    (path,) = export_run(Settings(data_dir=folder), "run-000000", "guidellm", folder / "guidellm.json").files
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", help="of `assayline export RUN --format guidellm`")
    given = parser.parse_args().file
    python = prepare_environment(GUIDELLM)
    with tempfile.TemporaryDirectory(prefix="guidellm-report-") as name:
        path = given or invent_report(Path(name))
        checked = subprocess.run([python, "-c", CHECK, path], check=False)
        outputs = [f"--output=kind={kind},path={name}/report.{kind}" for kind in ("html", "csv")]
        command = [python, "-m", "guidellm", "export", path, "--output=kind=console", *outputs]
        shown = subprocess.run(command, check=False)
    return 1 if checked.returncode or shown.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
