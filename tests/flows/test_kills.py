"""Kill the flow or its engine before an event of its files, then run the same command again.

The points are enumerated, so a failure repeats: none is a time. With a fake engine, `make test` kills a judged run
before some events, and `--kills N` before N of them. With a real engine, it kills the engine, then the flow, then the
flow that has all its answers and no report.
"""

import hashlib
import json
import math
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import flow_kit
import pyarrow.parquet as pq
import pytest
from run_kit import PATIENCE_S

PROMPTS = flow_kit.ROOT / "examples" / "arithmetic.jsonl"
COMPLETIONS, REPORT = "*/parts/completions/*.parquet", "*/report.html"
VERDICT = '{"verdict":"correct"}'
FORKS = """
import json, os, sys, sitecustomize
import assayline.flows.cli, assayline.flows.cli.terminal, assayline.flows.cli.tables, assayline.report.html, torch
import pyarrow.parquet, duckdb, transformers.models.auto.tokenization_auto, tokenizers
from transformers import PreTrainedTokenizerFast
import assayline.requests.chat, assayline.evaluation.prepare, vl_convert
for line in sys.stdin:
    arguments, points, log = json.loads(line)
    child = os.fork()
    if child == 0:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1), os.dup2(output, 2)
        sitecustomize.kill_at(os.environ["ASSAYLINE_DATA_DIR"], points)
        os._exit(assayline.flows.cli.run("evaluate", arguments))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""A process with the command's imports: each line of its input is a command, which a fork runs."""


@contextmanager
def forking(env: dict[str, str], log: Path) -> Iterator[Any]:
    """Yield a function that runs the command to its end or to a point, and returns its exit code."""
    with subprocess.Popen(
        [sys.executable, "-c", FORKS], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None

        def run(spec: Path, *points: tuple[str, str, int]) -> int:
            assert process.stdin is not None and process.stdout is not None
            print(json.dumps([[str(spec)], points, str(log)]), file=process.stdin, flush=True)
            return int(process.stdout.readline())

        yield run
        process.stdin.close()


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
    return [run_id for run_id, _ in found]


def judged_spec(model: Path, folder: Path) -> Path:
    """Write a spec whose answers another fake engine judges: its answer is the end of its prompt."""
    judge = {
        "name": "judge",
        "model": str(model),
        "engine": {"backend": "fake"},
        "prompts": {"source": {"kind": "run"}, "template": "{{ prompt }} " + VERDICT},
        "scorers": [{"kind": "verdict", "values": {"correct": 1, "incorrect": 0}}],
    }
    path = flow_kit.write_spec(folder / "judge.yaml", judge)
    spec = flow_kit.trial_spec(model, flow_kit.write_rows(folder / "rows.jsonl", 60))
    spec["scorers"] = ["exact_match", {"kind": "judge", "name": "right", "spec": str(path), "retries": 0}]
    spec["prompts"]["repeats"] = 2
    return flow_kit.write_spec(folder / "judged.yaml", spec)


def list_states(data_dir: Path) -> list[str]:
    manifests = sorted(data_dir.glob("runs/*/run.json"))
    return [json.loads(path.read_text())["state"] for path in manifests]


def digest_parts(data_dir: Path) -> dict[str, str]:
    return {str(part): hashlib.sha256(part.read_bytes()).hexdigest() for part in flow_kit.answered_parts(data_dir)}


def test_command_killed_before_file_events_goes_on_with_its_run(alone_env, modest_model, data_dir, tmp_path, request):
    """One run, and that of its judge: each attempt is killed before a later event, and the last ends."""
    wanted = int(request.config.getoption("--kills") or 0) or math.inf
    spec, log = judged_spec(modest_model, tmp_path), tmp_path / "log"
    kills: Counter[str] = Counter()
    judged: dict[str, str] = {}

    def attempt(*points: tuple[str, str, int]) -> int:
        before = list_states(data_dir)
        code = run(spec, *points)
        assert code in (0, -signal.SIGKILL), log.read_text()
        if code:
            kills["answering" if "completed" not in before else f"{before.count('completed')} completed"] += 1
        if "completed" in list_states(data_dir) and not judged:
            judged.update(digest_parts(data_dir))
        return code

    with forking(alone_env, log) as run:
        code, judged_run = 1, f"{data_dir}/runs/*-trial-????"
        last = [f"{data_dir}/runs/*-judged-by-*", f"{judged_run}/report.html", f"{judged_run}/run.json"]
        for completed, backstop in enumerate(last[: 3 if wanted < math.inf else 2]):
            n = 2
            while code and list_states(data_dir).count("completed") <= completed and kills.total() < wanted:
                code = attempt(("flow", f"{data_dir}/*", n), ("flow", backstop, 1))
                n += 1 if wanted < math.inf else 2 * n
        for name in ("report.html", "report.md", "run.json") if code else ():
            code = attempt(("flow", f"{judged_run}/{name}", 1))
        if code:
            assert attempt() == 0
    assert {path: judged[path] for path in judged} == {
        path: digest for path, digest in digest_parts(data_dir).items() if path in judged
    }, "judging leaves the judged run's answers as they are"
    run_id, _ = check_runs(data_dir, 120, 2)
    scores = "select count(*), sum(value) from scores where run_id = ? and scorer = 'right'"
    assert flow_kit.query(data_dir, scores, run_id) == [(120, 120)]
    print(json.dumps({"kills": kills}))
    assert kills["answering"] and kills["1 completed"] and kills["2 completed"] >= 3


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
    summary = "select attempts, engine_failures from run_summary"
    assert flow_kit.query(data_dir, summary) == [(2, 1)], "the third command needed no engine"
    texts = "select count(distinct text) from completions join requests using (run_id, request_id) group by prompt_id"
    assert set(flow_kit.query(data_dir, texts)) == {1}
