"""Kill the flow or its engine before an event of its files, then run the same command again.

The points are enumerated, so a failure repeats: none is a time. With a fake engine, `make test` kills each kind of
command in its middle, and `make test-rare` before each event, a quarter of them in a judged run. With a real engine, it
kills the engine, then the flow, then the flow that has all its answers and no report.
"""

import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import flow_kit
import pyarrow.parquet as pq
import pytest
from run_kit import PATIENCE_S

PROMPTS = flow_kit.ROOT / "examples" / "arithmetic.jsonl"
COMPLETIONS, REPORT = "*/parts/completions/*.parquet", "*/report.html"
EACH = range(1, 100_000)
"""Points of `make test-rare`, up to the end of the command."""
VERDICT = '{"verdict":"correct"}'
FORKS = """
import json, os, sys, sitecustomize
import assayline.flows.cli, assayline.flows.cli.terminal, assayline.flows.cli.tables, assayline.report.html, torch
import pyarrow.parquet, duckdb, transformers.models.auto.tokenization_auto, tokenizers
from transformers import PreTrainedTokenizerFast
import assayline.requests.chat, assayline.run.prepare, vl_convert
for line in sys.stdin:
    words, folder, points = json.loads(line)
    child = os.fork()
    if child == 0:
        output = os.open(folder + ".log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1), os.dup2(output, 2)
        os.environ["ASSAYLINE_DATA_DIR"] = folder
        sitecustomize.kill_at(folder, points)
        os._exit(assayline.flows.cli.run(words[0], words[1:]))
    _, status, usage = os.wait4(child, 0)
    print(json.dumps([os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime]), flush=True)
"""
"""A process with the command's imports: each line of its input is a command, which a fork runs."""


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Start the process with the environment of the file's first test; its imports take seconds."""
    started: list[subprocess.Popen[str]] = []
    folder = tmp_path_factory.mktemp("forks")
    with ExitStack() as held:

        def start(env: dict[str, str]) -> subprocess.Popen[str]:
            if not started:
                own = {"ASSAYLINE_DATA_DIR": str(folder / "data"), "ASSAYLINE_LOCK_DIR": str(folder / "locks")}
                pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
                started.append(
                    held.enter_context(subprocess.Popen([sys.executable, "-c", FORKS], env=env | own, **pipes))
                )
            return started[0]

        yield start


@pytest.fixture
def run(forks: Any, command_env: dict[str, str]) -> Any:
    """Run a command in a data folder, to its end or to a point; return its exit code and CPU-seconds."""
    process = forks(command_env)

    def call(folder: Path, command: Sequence[str | Path], *points: tuple[str, str, int]) -> Any:
        print(json.dumps([[*map(str, command)], str(folder), points]), file=process.stdin, flush=True)
        return json.loads(process.stdout.readline())

    return call


def read_answers(data_dir: Path, run_id: str) -> dict[str, str]:
    """Return a run's texts by request: each once, in the database and in the parts."""
    query = "select request_id, text from completions where run_id = ? and error_kind is null"
    rows = flow_kit.query(data_dir, query, run_id)
    in_parts: Counter[str] = Counter()
    for part in flow_kit.answered_parts(data_dir):
        if run_id in part.parts:
            in_parts.update(pq.read_table(part)["request_id"].to_pylist())  # a torn part would not open
    assert in_parts == Counter(request_id for request_id, _ in rows)
    return dict(rows)


def check_runs(data_dir: Path, requests: int, runs: int) -> list[str]:
    """Check the number of runs, and that each is complete, sound and has a report; return their ids."""
    found = flow_kit.query(data_dir, "select run_id, state from runs order by started_at")
    assert [state for _, state in found] == ["completed"] * runs, "no command has begun another run"
    assert flow_kit.query(data_dir, "select is_sound from request_integrity") == [True] * runs
    for run_id, _ in found:
        assert len(read_answers(data_dir, run_id)) == requests
        assert (data_dir / "runs" / run_id / "report.html").exists()
        assert len([*(data_dir / "runs" / run_id / "parts").rglob("*.*")]) <= 7, "its parts are merged"
    return [run_id for run_id, _ in found]


def write_spec(model: Path, folder: Path, is_judged: bool) -> Path:
    """Write a spec of 60 rows, whose answers another fake engine may judge: its answer is the end of its prompt."""
    spec = flow_kit.trial_spec(model, flow_kit.write_rows(folder / "rows.jsonl", 60))
    judge = {
        "name": "judge",
        "model": str(model),
        "engine": {"backend": "fake"},
        "prompts": {"source": {"kind": "run"}, "template": "{{ prompt }} " + VERDICT},
        "scorers": [{"kind": "verdict", "values": {"correct": 1, "incorrect": 0}}],
    }
    path = flow_kit.write_spec(folder / "judge.yaml", judge)
    if is_judged:
        spec["scorers"] = ["exact_match", {"kind": "judge", "name": "right", "spec": str(path), "retries": 0}]
    return flow_kit.write_spec(folder / "spec.yaml", spec)


def is_done(data_dir: Path) -> bool:
    """Return whether a killed command left nothing to do."""
    manifests = [json.loads(path.read_text()) for path in data_dir.glob("runs/*-trial-????/run.json")]
    return any(run["state"] == "completed" and not run["lacks_report"] for run in manifests)


def read_campaign(data_dir: Path, kind: str) -> tuple[dict[str, Any], list[str]]:
    """Return the one campaign of a kind, and the ids of its complete runs."""
    (path,) = data_dir.glob(f"{kind}s/*/{kind}.json")
    campaign: dict[str, Any] = json.loads(path.read_text())
    manifests = [data_dir / "runs" / one / "run.json" for ids in campaign["runs"].values() for one in ids]
    runs = [json.loads(one.read_text()) for one in manifests if one.exists()]
    return campaign, [run["run_id"] for run in runs if run["state"] == "completed" and not run["lacks_report"]]


@pytest.mark.parametrize(
    ("kind", "points"),
    [
        ("suite", [230]),
        ("gate", [120]),
        ("bisection", [150]),
        pytest.param("suite", EACH, marks=pytest.mark.rare, id="suite-each"),
        pytest.param("gate", EACH, marks=pytest.mark.rare, id="gate-each"),
        pytest.param("bisection", EACH, marks=pytest.mark.rare, id="bisection-each"),
    ],
    ids=str,
)
def test_campaign_killed_before_a_file_event_goes_on_with_its_runs(kind, points, run, modest_model, charts, tmp_path):
    """A suite of two judged evaluations, a gate that measures two runs again, and a bisection of three models, of which
    the fake engine answers otherwise by two. Each answer is there once."""
    spec, first = write_spec(modest_model, tmp_path, kind == "suite"), tmp_path / "first"
    own, all_runs = {"bisection": (3, 3)}.get(kind, (2, 4))
    command: list[str | Path] = ["suite", tmp_path / "suite.yaml"]
    first.mkdir()
    (first / "cache").symlink_to(charts)
    if kind == "suite":
        other = {"spec": str(spec), "name": "other", "overrides": {"sampling.max_tokens": 3}}
        flow_kit.write_spec(tmp_path / "suite.yaml", {"evaluations": [{"spec": str(spec)}, other]})
    elif kind == "bisection":
        models = [shutil.copytree(modest_model, tmp_path / f"model-{number}") for number in range(3)]
        for number, model in enumerate(models):
            template = (model / "chat_template.jinja").read_text() + (" now" if number else "")
            (model / "chat_template.jinja").write_text(f"{template}{{# {number} #}}")
        (tmp_path / "models.txt").write_text("\n".join(map(str, models)))
        command = ["bisect", spec, "--over", f"model={tmp_path / 'models.txt'}", "--metric", "accuracy"]
    else:
        ends = []
        for more in ("4", "3"):
            asked = ["evaluate", spec, "--sampling.max_tokens", more]
            assert run(first, asked)[0] == 0, first.with_suffix(".log").read_text()
            ends += [one.name for one in (first / "runs").iterdir() if one.name not in ends]
        command = ["gate", ends[1], "--baseline", ends[0], "--remeasure", "--max_slowdown", "{}"]
    for point in points:
        data_dir = tmp_path / f"killed-{point}"
        shutil.copytree(first, data_dir, symlinks=True)
        code, _ = run(data_dir, command, ("flow", f"{data_dir}/*", point))
        log = data_dir.with_suffix(".log")
        assert code == -signal.SIGKILL or (code in (0, 13) and len(points) > 2), log.read_text()
        has_begun = any(data_dir.glob(f"{kind}s/*/{kind}.json"))
        campaign, before = read_campaign(data_dir, kind) if has_begun else ({"is_over": False}, [])
        if not campaign["is_over"]:
            again, _ = run(data_dir, command)
            assert again in (0, 13), f"point {point}: {log.read_text()}"
        campaign, ended = read_campaign(data_dir, kind)
        assert campaign["is_over"] and set(before) <= set(ended), f"point {point}: no run is lost"
        assert len(ended) == own, f"point {point}: no run is new"
        for run_id in ended:
            assert len(read_answers(data_dir, run_id)) == 60
        whole = flow_kit.query(data_dir, "select count(*) from runs where state = 'completed'")
        assert whole == [all_runs], f"point {point}: no run is done twice"
        shutil.rmtree(data_dir)
        if code in (0, 13):
            break
    print(json.dumps({"events": point}))


@pytest.mark.parametrize(
    ("is_judged", "files", "points"),
    [
        (True, "*", [80]),
        (False, "*/merged.parquet", [1, 3]),
        pytest.param(True, "*", EACH[::4], marks=pytest.mark.rare, id="judged-fourth"),
        pytest.param(False, "*", EACH, marks=pytest.mark.rare, id="each"),
    ],
    ids=str,
)
def test_command_killed_before_a_file_event_goes_on_with_its_run(
    is_judged, files, points, run, modest_model, charts, tmp_path
):
    """Each point of a run of 60 rows is that of a run of its own, which the same command then completes."""
    spec, seconds = write_spec(modest_model, tmp_path, is_judged), 0.0
    for point in points:
        data_dir = tmp_path / f"killed-{point}"
        data_dir.mkdir()
        (data_dir / "cache").symlink_to(charts)
        code, used_s = run(data_dir, ["evaluate", spec], ("flow", f"{data_dir}/{files}", point))
        seconds += used_s
        log = data_dir.with_suffix(".log")
        assert code == -signal.SIGKILL or (code == 0 and len(points) > 2), log.read_text()
        if code and not is_done(data_dir):
            again, used_s = run(data_dir, ["evaluate", spec])
            seconds += used_s
            assert again == 0, f"point {point}: {log.read_text()}"
        check_runs(data_dir, 60, 2 if is_judged else 1)
        scores = "select count(*), sum(value) from scores where scorer = 'right'"
        assert flow_kit.query(data_dir, scores) == [(60, 60) if is_judged else (0, None)], f"point {point}"
        shutil.rmtree(data_dir)
        if code == 0:
            break
    print(json.dumps({"events": point, "cpu_s": round(seconds, 1)}))


@pytest.mark.rare
@pytest.mark.vllm
def test_command_with_a_killed_real_engine_answers_each_request_once(alone_env, tiny_model, data_dir, tmp_path):
    """The engine dies at the first answers, the flow at later ones, and again when it has all answers and no report."""
    spec = {
        "name": "kills",
        "model": str(tiny_model),
        "prompts": {
            "source": {"kind": "file", "path": str(PROMPTS)},
            "columns": {"target": "answer"},
            "template": "{{ question }}",
            "limit": 40,
            "repeats": 4,
        },
        "sampling": {"temperature": 0, "max_tokens": 16},
        "engine": {"device": "cpu", "args": {**flow_kit.SMALL_ENGINE, "max_num_seqs": 2}, "env": flow_kit.ONE_THREAD},
    }
    command, log = flow_kit.evaluate_command(flow_kit.write_spec(tmp_path / "spec.yaml", spec)), tmp_path / "log"
    attempts = [[("engine", COMPLETIONS, 1), ("flow", COMPLETIONS, 4)], [("flow", REPORT, 1)], []]
    for points in attempts:
        with flow_kit.started(command, {**alone_env, "KILL_AT": json.dumps(points)}, log) as process:
            assert process.wait(PATIENCE_S) == (-signal.SIGKILL if points else 0), log.read_text()
            flow_kit.assert_nothing_runs(data_dir)
    check_runs(data_dir, requests=160, runs=1)
    summary = "select attempts, (select count(*) from engine where ending = 'failed') from main.run"
    assert flow_kit.query(data_dir, summary) == [(2, 1)], "the third command needed no engine"
    texts = "select count(distinct text) from completions join requests using (run_id, request_id) group by prompt_id"
    assert set(flow_kit.query(data_dir, texts)) == {1}


@pytest.mark.parametrize("points", [[100], pytest.param(EACH[::3], marks=pytest.mark.rare, id="third")], ids=str)
def test_reread_killed_before_a_file_event_goes_on_with_its_readings(points, run, modest_model, charts, tmp_path):
    """Three readings of 30 answers: a completed one is not repeated, unless the verdict alone was missing."""
    spec, first = write_spec(modest_model, tmp_path, is_judged=False), tmp_path / "first"
    first.mkdir()
    (first / "cache").symlink_to(charts)
    assert run(first, ["evaluate", spec])[0] == 0, first.with_suffix(".log").read_text()
    readings = "select run_id from runs where purpose = 'reread' order by started_at"
    for point in points:
        data_dir = tmp_path / f"killed-{point}"
        shutil.copytree(first, data_dir, symlinks=True)
        code, _ = run(data_dir, ["reread", "last", spec], ("flow", f"{data_dir}/*", point))
        log = data_dir.with_suffix(".log")
        assert code == -signal.SIGKILL or (code == 0 and len(points) > 2), log.read_text()
        known = flow_kit.query(data_dir, "select count(*) from verdict")[0]
        if not known:
            (run_id,) = (one.name for one in (first / "runs").iterdir())
            assert run(data_dir, ["reread", run_id, spec])[0] == 0, f"point {point}: {log.read_text()}"
        found = flow_kit.query(data_dir, readings)
        assert 3 <= len(found) <= 4, f"point {point}"
        for run_id in found:
            assert len(read_answers(data_dir, run_id)) == 30, f"point {point}"
        tokens = "select count(*), count(distinct (run_id, request_id, position)) from token"
        assert flow_kit.query(data_dir, tokens) == [(120 * len(found),) * 2], f"point {point}: 30 answers of 4"
        assert flow_kit.query(data_dir, "select verdict, baseline_run_id from verdict") != []
        shutil.rmtree(data_dir)
        if code == 0:
            break
    print(json.dumps({"events": point}))
