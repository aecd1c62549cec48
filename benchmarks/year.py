"""The costs of a team's year: files, bytes, and the CPU seconds of daily commands and pages.

    python -m benchmarks.year [--share 1.0] [--folder FOLDER]

Four runs of the fake engine are cloned with other clocks, answers and states into 365 nights of three specs (500
prompts each), 40 models × 10 evaluations and 20 benchmarks × 6 runs (200 prompts each): 1,615 runs, 651,500 requests.
`--share` makes fewer of each. Clones of a spec have equal timings, so no verdict on speed means anything. The database
is made by `assayline db rebuild --all`, for a quarter of the runs and for all of them.

CPU seconds are those of a command and its children; MiB are the peak of the largest process.
"""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml

from assayline.clock import RunClock
from assayline.digests import digest_json
from assayline.store.manifest import new_run_id, read_manifest, write_manifest

MIB = 2**20
DAY_S = 86_400
MODEL = Path(__file__).resolve().parents[1] / ".cache" / "tiny-model"
NIGHTS, MODELS, EVALUATIONS, BENCHMARKS, CELLS = 365, 40, 10, 20, 6
STATES = [("completed", 0.965), ("failed", 0.02), ("cancelled", 0.01), ("running", 0.005)]
"""Shares of states. A run that was killed stays `running`."""


class Clone(NamedTuple):
    """A run of the year that never ran."""

    template: Path
    name: str
    started_s: float
    changes: dict[str, Any]
    """Fields of its manifest."""


def make_template(name: str, prompts: int, data_dir: Path) -> Path:
    """Answer prompts with the fake engine, which repeats their last word; return the run's folder."""
    folder = data_dir.parent / "specs"
    folder.mkdir(exist_ok=True)
    rows = [
        {"question": f"How much is {n % 97} plus {n // 97}? Item {name} {n % 7}", "answer": str(n % 7)}
        for n in range(prompts)
    ]
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = {
        "name": name,
        "model": str(MODEL),
        "prompts": {
            "source": {"kind": "file", "path": str(folder / f"{name}.jsonl")},
            "columns": {"target": "answer"},
            "template": "{{ question }}",
        },
        "chat": {"template": "plain"},
        "sampling": {"temperature": 0, "max_tokens": 32},
        "engine": {"backend": "fake"},
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(spec))
    run(data_dir, "evaluate", str(path))
    return max((data_dir / "runs").glob(f"*-{name}-*"))


def plan_year(share: float, data_dir: Path) -> Iterator[Clone]:
    """List the runs of a year that ends now, oldest first within each kind."""
    now_s = time.time()
    nights, models, benchmarks = (max(2, round(share * number)) for number in (NIGHTS, MODELS, BENCHMARKS))
    for spec in range(3):
        name = f"night-{spec}"
        template = make_template(name, 500, data_dir)
        for night in range(nights):
            yield Clone(template, name, now_s - (nights - night) * DAY_S + spec * 3600, {})
    template = make_template("evaluation", 200, data_dir)
    for model in range(models):
        named = {"model": f"model-{model:02d}", "model_id": f"sha256:{digest_json(model)}"}
        for one in range(EVALUATIONS):
            changes = {**named, "config_id": digest_json([model, one])}
            yield Clone(template, f"evaluation-{one}", now_s - (models - model) * 9 * DAY_S + one * 60, changes)
    for benchmark in range(benchmarks):
        began_s = now_s - (benchmarks - benchmark) * 18 * DAY_S
        benchmark_id = new_run_id("sweep", RunClock(began_s, 0.0, "unknown"))
        for cell in range(CELLS):
            changes = {
                "benchmark_id": benchmark_id,
                "purpose": "benchmark",
                "config_id": digest_json(["cell", cell % 3]),
            }
            yield Clone(template, "sweep", began_s + cell * 60, changes)


def make_clone(clone: Clone, chance: random.Random) -> None:
    """Copy a run's folder with another id, clock and state, and an answer in ten or so changed."""
    clock = RunClock(clone.started_s, 0.0, "unknown")
    run_id = new_run_id(clone.name, clock)
    folder = clone.template.with_name(run_id)
    shutil.copytree(clone.template, folder)
    (state,) = chance.choices([state for state, _ in STATES], [share for _, share in STATES])
    changes = {"name": clone.name, "run_id": run_id, "clock": clock, "state": state, **clone.changes}
    write_manifest(folder, replace(read_manifest(folder), **changes))
    spec = json.loads((folder / "spec.json").read_text())
    spec |= {"name": clone.name, "model": clone.changes.get("model", spec["model"])}
    (folder / "spec.json").write_text(json.dumps(spec))
    for part in folder.glob("parts/completions/*.parquet"):
        answers, metadata = pq.read_table(part), pq.read_metadata(part).metadata or {}
        quality = chance.uniform(0.85, 0.95)
        kept = pa.array([chance.random() < quality for _ in range(answers.num_rows)])
        texts = pc.if_else(kept, answers["text"], f"none of these, {run_id}")
        answers = answers.set_column(answers.schema.get_field_index("text"), "text", texts)
        with pq.ParquetWriter(part, answers.schema, compression="zstd") as writer:
            writer.write_table(answers)
            writer.add_key_value_metadata({key: metadata[key] for key in (b"sources",) if key in metadata})


class Cost(NamedTuple):
    """The cost of a command."""

    cpu_s: float
    peak_mib: float
    output: str


def run(data_dir: Path, *arguments: str) -> Cost:
    """Run a command of assayline. Raises CalledProcessError unless its verdict or state is its exit code."""
    command = [sys.executable, "-m", "assayline", *arguments]
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, env=environment(data_dir), stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    if process.returncode not in (0, 1, 15):
        raise subprocess.CalledProcessError(process.returncode, command, text)
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, text)


def environment(data_dir: Path) -> dict[str, str]:
    return {**os.environ, "ASSAYLINE_DATA_DIR": str(data_dir), "PREFECT_API_URL": "", "ASSAYLINE_BAR": "false"}


def time_commands(data_dir: Path, specs: Path) -> dict[str, Cost]:
    """Run the commands of a team's day, those that write last."""
    newest, earlier, *_ = sorted((path.name for path in (data_dir / "runs").glob("*-night-0-*")), reverse=True)[1:]
    tables = data_dir.parent / "tables"
    commands = {
        "list runs": ["list", "runs"],
        "list runs --size": ["list", "runs", "--size"],
        "list runs --state failed --since 90d": ["list", "runs", "--state", "failed", "--since", "90d"],
        "report RUN": ["report", newest],
        "compare": ["compare", newest, earlier],
        "report --history": ["report", "--history", "night-0"],
        "report --leaderboard": ["report", "--leaderboard"],
        "baseline pin": ["baseline", "pin", "stable", earlier],
        "gate --nightly": ["gate", newest, "--baseline", "stable", "--nightly"],
        "evaluate a night of 500": ["evaluate", str(specs / "night-0.yaml"), "--fresh"],
        "db rebuild RUN": ["db", "rebuild", newest],
        "db export --all": ["db", "export", "--all", "--output", str(tables)],
        "delete --older-than 90d": ["delete", "--older-than", "90d"],
        "delete --older-than 90d --yes": ["delete", "--older-than", "90d", "--yes"],
    }
    pages = {}
    found = {}
    for name, arguments in commands.items():
        if name.startswith("delete") and not pages:
            pages = time_pages(data_dir, newest, earlier)
        found[name] = run(data_dir, *arguments)
    found["db export --all"] = found["db export --all"]._replace(output=f"{count_bytes(tables) / MIB:.1f} MiB")
    return {**found, **pages}


def time_pages(data_dir: Path, newest: str, earlier: str) -> dict[str, Cost]:
    """Open pages of the viewer twice; the second time it has them, unless the database changed."""
    paths = {
        "list": "/", "list, page 2": "/?page=2", "list, by text": "/?text=night-1", "run": f"/run?run={newest}",
        "history": "/history?name=night-0", "leaderboard": "/leaderboard", "answers": f"/answers?run={newest}",
        "two runs": f"/compare?run={newest}&baseline={earlier}",
    }  # fmt: skip
    command = [sys.executable, "-m", "assayline", "view", "--no-browser"]
    viewer = subprocess.Popen(command, env=environment(data_dir), stdout=subprocess.PIPE, text=True)
    try:
        assert viewer.stdout is not None
        url = next(shown[0] for line in viewer.stdout if (shown := re.search(r"http://\S+", line)))
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(CookieJar())
        )
        opener.open(url).read()
        found: dict[str, Cost] = {}
        for name, path in paths.items():
            for again in ("", ", again"):
                before_s = sum(psutil.Process(viewer.pid).cpu_times()[:2])
                size = len(opener.open(url.partition("/?")[0] + path).read())
                spent_s = sum(psutil.Process(viewer.pid).cpu_times()[:2]) - before_s
                peak = psutil.Process(viewer.pid).memory_info().rss / MIB
                found[f"page: {name}{again}"] = Cost(spent_s, peak, f"{size / 1024:.0f} KiB")
        return found
    finally:
        viewer.terminate()
        viewer.wait()


def count_bytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def count_files(data_dir: Path) -> dict[str, float]:
    """Return inodes, files and MiB per run, and MiB of all of them by kind."""
    paths = list((data_dir / "runs").rglob("*"))
    files = [path for path in paths if path.is_file()]
    runs = len(list((data_dir / "runs").iterdir()))
    kinds = {"parts": "*.parquet", "reports": "report.*", "rest": "*"}
    sizes = dict.fromkeys(kinds, 0)
    for path in files:
        sizes[next(kind for kind, pattern in kinds.items() if path.match(pattern))] += path.stat().st_size
    return {
        "runs": runs,
        "inodes_per_run": len(paths) / runs,
        "files_per_run": len(files) / runs,
        "parts_per_run": sum(path.suffix == ".parquet" for path in files) / runs,
        "kib_per_run": sum(sizes.values()) / runs / 1024,
        **{f"{kind}_mib": size / MIB for kind, size in sizes.items()},
    }


def measure(folder: Path, share: float) -> dict[str, Any]:
    """Make the year's folder, load it, and run the commands."""
    data_dir, chance = folder / "data", random.Random(1)
    clones = list(plan_year(share, data_dir))
    for clone in clones:
        make_clone(clone, chance)
    for template in {clone.template for clone in clones}:
        shutil.rmtree(template)
    run_ids = sorted(path.name for path in (data_dir / "runs").iterdir())
    some = chance.sample(run_ids, max(1, len(run_ids) // 4))
    part = run(data_dir, "db", "rebuild", *some, "--into", str(folder / "some.duckdb"))
    (data_dir / "assayline.duckdb").unlink()
    whole = run(data_dir, "db", "rebuild", "--all")
    assert len(re.findall(r"^Run \S+, \w+: ", whole.output, re.MULTILINE)) == len(run_ids), whole.output[-2_000:]
    return {
        "benchmark": "year",
        **count_files(data_dir),
        "database_mib": (data_dir / "assayline.duckdb").stat().st_size / MIB,
        "rebuild_cpu_s_per_run": {
            str(len(some)): part.cpu_s / len(some),
            str(len(run_ids)): whole.cpu_s / len(run_ids),
        },
        "rebuild_peak_mib": whole.peak_mib,
        "commands": {
            name: {"cpu_s": cost.cpu_s, "peak_mib": cost.peak_mib, "last_line": cost.output.strip().rpartition("\n")[2]}
            for name, cost in time_commands(data_dir, folder / "specs").items()
        },
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="of the year's runs")
    parser.add_argument("--folder", type=Path, help="folder to keep, about 0.5 GB for a year (default: temporary)")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="assayline-year-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        found = measure(folder.resolve(), options.share)
    finally:
        if not options.folder:
            shutil.rmtree(folder)
    for name, value in found.items():
        if name == "commands":
            for command, cost in value.items():
                print(f"{command}: {cost['cpu_s']:.2f} CPU-s, {cost['peak_mib']:.0f} MiB; {cost['last_line'][:100]}")
        else:
            print(f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {value}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
