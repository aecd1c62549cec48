"""Judges among a spec's scorers, on fake engines; test_front_ends.py has them on the command line and in a flow.

The fake engine answers with the last word of its prompt, so a judge's template writes the verdict that it will give.
"""

import json
import re
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import flow_kit
import pytest
import yaml
from run_kit import begin_and_vanish

from assayline import evaluate
from assayline.benchmark.configurations import BenchmarkAsk, plan_benchmark
from assayline.engines import client
from assayline.engines.fake import FakeEngine
from assayline.engines.pool import EnginePool
from assayline.errors import EngineError, JudgeNotTrustedError, ModelError, RunFailedError, SpecError
from assayline.flows import cli
from assayline.flows.evaluate import evaluate as evaluate_flow
from assayline.run import driver, stages
from assayline.run.campaign import run_benchmark, run_suite
from assayline.run.judging import read_verdicts
from assayline.run.rescore import rescore_run
from assayline.settings import load_settings
from assayline.spec.file import parse_spec
from assayline.spec.judges import JudgeScorer
from assayline.spec.suite import parse_suite
from assayline.store.database import connect
from assayline.store.decisions import add_label
from assayline.store.manifest import Purpose

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("kept_charts")]

HUMAN = ("correct", "incorrect", "incorrect")
VERDICT = r"\{\"verdict\": \"(correct|incorrect)\", \"reason\": \"[a-z]{1,3}\"\}"
RULE = "{{ 'correct' if answer == target else 'incorrect' }}"


def write_judge(folder: Path, fake_spec: dict[str, Any], verdict: str = RULE, name: str = "strict") -> Path:
    """Write a judge's spec. `verdict` is a template over the judged answer's columns."""
    spec = {
        "name": name,
        "model": fake_spec["model"],
        "engine": fake_spec["engine"],
        "prompts": {"source": {"kind": "run"}, "template": '{{ prompt }} {"verdict":"' + verdict + '","reason":"…"}'},
        "scorers": [{"kind": "verdict", "values": {"correct": 1, "incorrect": 0}}],
    }  # fmt: skip
    return flow_kit.write_spec(folder / f"{name}.yaml", spec)


def judged_by(fake_spec: dict[str, Any], *specs: Path, **fields: Any) -> dict[str, Any]:
    scorer = {"kind": "judge", "name": "helpful", "spec": [str(path) for path in specs], **fields}
    return {**fake_spec, "scorers": ["exact_match", scorer]}


def read_tables(data_dir: Path) -> dict[str, list[str]]:
    """Return the rows of every table and user's view, except when they were computed; sums in no fixed order differ.

    Audits of judges, comparisons and the frontier are left out: the next report or gate makes them.
    """
    lists = (
        "select table_schema, table_name from information_schema.tables "
        "where table_schema in ('raw', 'main') and table_name not similar to '(judge_audit|comparison)s?|frontier'"
    )
    found = {}
    for schema, name in flow_kit.query(data_dir, lists):
        rows = flow_kit.query(
            data_dir, f"select columns(lambda c: c not in ('scored_at', 'measured_at')) from {schema}.{name}"
        )
        found[f"{schema}.{name}"] = sorted(
            re.sub(r"\d+\.\d+(e-\d+)?", lambda n: f"{float(n[0]):.6g}", repr(row)) for row in rows
        )
    return found


@pytest.mark.usefixtures("short_reports")
def test_rebuild_makes_a_lost_database_again_table_by_table(fake_spec, data_dir, tmp_path, capsys):
    fake_spec["prompts"]["source"]["path"] = str(write_half(tmp_path))
    fake_spec["prompts"]["columns"]["metadata"] = ["human"]
    judged = evaluate(judged_by(fake_spec, write_judge(tmp_path, fake_spec), label="human")).run_id
    worse = {**fake_spec, "chat": {"template": "{{ messages[0].content }} what"}}
    last = evaluate(worse).run_id
    for words in (["pin", "good", last], ["pin", "good", judged], ["pin", "old", last], ["unpin", "old"]):
        assert cli.run("baseline", words) == 0
    settings = load_settings()
    front = driver.FrontEnd(settings)
    assert stages.gate_run(settings, front.log, last, "good", {"max_slowdown": {}}).failed
    limits = {"baseline": "good", "max_slowdown": {}}
    gated = flow_kit.write_spec(tmp_path / "gated.yaml", {**fake_spec, "gate": limits})
    run_suite(parse_suite({"name": "s", "evaluations": [{"spec": str(gated)}]}), front)
    run_benchmark(plan_benchmark(BenchmarkAsk(spec=fake_spec, repeats=1), settings), front)
    assert cli.run("score", [judged, "--scorer", "contains"]) == 0
    sample = {
        "run_id": judged,
        "prompt_id": "p",
        "occurrence": 0,
        "repeat_index": 0,
        "rubric": None,
        "label": "correct",
    }
    label = {**sample, "labelled_by": "me", "labelled_at": datetime(2026, 1, 1)}
    with connect(settings.database_path, 10) as connection:
        add_label(connection, settings.run_dir(judged), label)
    killed = begin_and_vanish(parse_spec({**fake_spec, "name": "killed"}), settings, 3)
    assert cli.run("db rebuild", [killed.run_id]) == 0
    before = read_tables(data_dir)
    empty = {"raw.loads", "raw.slos", "raw.device_telemetry", "raw.rankings", "raw.tokens"}
    assert {name for name, rows in before.items() if not rows and name.startswith("raw.")} <= empty
    assert len(before["raw.verdicts"]) >= 3 and len(before["raw.baselines"]) == 1
    settings.database_path.unlink()
    assert cli.run("db rebuild", ["--all"]) == 0
    after = read_tables(data_dir)
    lost = {name: sorted(set(before[name]) ^ set(after[name])) for name in before}
    assert {name: rows for name, rows in lost.items() if rows or len(before[name]) != len(after[name])} == {}


def switch_off(*_: Any, **__: Any) -> None:
    raise RuntimeError("The machine was switched off.")


def read_scores(data_dir: Path, run_id: str, scorer: str = "helpful") -> list[Any]:
    return flow_kit.query(
        data_dir,
        "select value, count(*) from scores where run_id = ? and scorer = ? group by all order by all",
        run_id,
        scorer,
    )


@pytest.mark.prefect
@pytest.mark.usefixtures("prefect_client")
def test_judge_scores_each_answer_in_a_run_of_its_own(fake_spec, data_dir, tmp_path):
    fake_spec["prompts"]["source"]["path"] = str(write_half(tmp_path))
    judge = write_judge(tmp_path, fake_spec)
    result = evaluate_flow(judged_by(fake_spec, judge))
    run_id = result["run_id"]
    dry = flow_kit.run_here("score", run_id, "--judge", judge, "--dry-run")
    assert dry.code == 0 and f"40 rows of answers of {run_id}, " in dry.out
    metrics = {row["metric"]: row["value"] for row in result["metrics"]}
    assert metrics["accuracy (exact_match)"] == metrics["helpful"] == 0.5
    assert read_scores(data_dir, run_id) == [(0.0, 20), (1.0, 20)]
    [(judge_run, name)] = flow_kit.query(data_dir, "select run_id, name from runs where run_id <> ?", run_id)
    assert name == "trial judged by helpful"
    assert flow_kit.query(
        data_dir,
        "select count(*), count(distinct judged_prompt_id), any_value(judge_run_id) from judgement "
        "where judged_run_id = ? and status = 'judged'",
        run_id,
    ) == [(40, 40, judge_run)]


def write_half(folder: Path) -> Path:
    """Write 40 prompts, of which every other one has a target that the fake engine does not answer."""
    path = folder / "half.jsonl"
    rows = [
        {"question": f"{n} + 1 is {n + 1}", "answer": str(n + 1 + n % 2), "id": f"q{n}", "human": HUMAN[n % 3]}
        for n in range(40)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.usefixtures("short_reports")
def test_answers_without_a_readable_verdict_are_asked_again_and_never_count_as_wrong(fake_spec, data_dir, tmp_path):
    odd = "{{ 'maybe' if id and id[-1] in '13579' else 'correct' }}"
    path = write_half(tmp_path)
    fake_spec["prompts"]["source"]["path"] = str(path)
    fake_spec["prompts"]["columns"]["id"] = "id"
    result = evaluate(judged_by(fake_spec, write_judge(tmp_path, fake_spec, odd)))
    assert read_scores(data_dir, result.run_id) == [(1.0, 20)]
    asked = flow_kit.query(
        data_dir,
        "select prompt_rows, sum(value), count(*) filter (error_kind = 'unreadable') "
        "from runs join scores using (run_id) where name <> 'trial' group by runs.* order by any_value(started_at)",
    )
    assert asked == [(40, 20.0, 20), (20, 0.0, 20)]


def test_answers_too_long_for_the_judge_have_no_score_and_stay_known(fake_spec, data_dir, tmp_path):
    fake_spec["prompts"]["source"]["path"] = str(write_half(tmp_path))
    fake_spec["prompts"]["columns"]["id"] = "id"
    path = write_judge(tmp_path, fake_spec)
    judge = yaml.safe_load(path.read_text())
    long = "{{ 'word ' * 1_000 if id[-1] in '13579' else '' }}"
    judge["prompts"]["template"] = long + judge["prompts"]["template"]
    flow_kit.write_spec(path, judge)
    run_id = evaluate(judged_by(fake_spec, path)).run_id
    assert read_scores(data_dir, run_id) == [(1.0, 20)]
    assert flow_kit.query(
        data_dir, "select status, count(*) from judgement where judged_run_id = ? group by all order by all", run_id
    ) == [("error", 20), ("judged", 20)]
    assert flow_kit.query(data_dir, "select distinct error_kind from answer where error_kind is not null") == [
        "prompt_too_long"
    ]
    audited = "select value from judge_audit where judged_run_id = ? and measure = 'judged_requests'"
    assert flow_kit.query(data_dir, audited, run_id) == [20], "stored with the report"


def test_judge_that_agrees_too_little_with_labels_is_not_trusted(fake_spec, data_dir, tmp_path):
    fake_spec["prompts"]["source"]["path"] = str(write_half(tmp_path))
    fake_spec["prompts"]["columns"]["metadata"] = ["human"]
    path = write_judge(tmp_path, fake_spec)
    with pytest.raises(JudgeNotTrustedError, match=r"helpful.*kappa with 40 labels in the column human is -?0\.\d"):
        evaluate(judged_by(fake_spec, path, label="human", min_kappa=0.6))
    [(run_id, state)] = flow_kit.query(data_dir, "select run_id, state from runs where name = 'trial'")
    assert state == "completed"
    assert read_scores(data_dir, run_id) == [(0.0, 20), (1.0, 20)]
    page = (data_dir / "runs" / run_id / "report.html").read_text(encoding="utf-8")
    assert '"state state-not-trusted">not trusted<' in page
    assert re.search(r'<p class="headline">Judge not trusted: kappa −?0\.\d\d, min_kappa 0\.6 \(helpful\)\.', page)
    judge_run, *_ = flow_kit.query(data_dir, "select run_id from runs where name <> 'trial' order by started_at")
    page = (data_dir / "runs" / judge_run / "report.html").read_text(encoding="utf-8")
    assert "<dt>Mean verdict" in page and "Run completed: mean verdict 50%" in page and "50% correct" not in page


@pytest.mark.usefixtures("short_reports")
def test_panel_of_judges_combines_their_verdicts(fake_spec, data_dir, tmp_path):
    lenient = write_judge(tmp_path, fake_spec, "correct", "lenient")
    fake_spec["prompts"]["source"]["path"] = str(write_half(tmp_path))
    strict = write_judge(tmp_path, fake_spec)
    run_id = evaluate(judged_by(fake_spec, strict, lenient, lenient, combine="majority")).run_id
    assert read_scores(data_dir, run_id) == [(1.0, 40)]
    judges = flow_kit.query(data_dir, "select run_id from runs where run_id <> ? order by started_at", run_id)
    assert len(judges) == 3
    mean = JudgeScorer(kind="judge", spec=[{"model": "m"}], combine="mean")
    found = read_verdicts(load_settings(), mean, judges[:2])
    assert Counter(score.value for score in found.scores) == {0.5: 20, 1.0: 20}
    assert {score.extracted for score in found.scores} == {"correct", "correct, incorrect"}


def test_judge_that_fails_costs_its_panel_only_and_is_retried(fake_spec, data_dir, tmp_path, monkeypatch):
    lenient, broken = (write_judge(tmp_path, fake_spec, "correct", name) for name in ("lenient", "broken"))
    engine = {**fake_spec["engine"], "max_concurrency": 7}
    flow_kit.write_spec(broken, {**yaml.safe_load(broken.read_text()), "engine": engine})
    spec = judged_by(fake_spec, broken, lenient)
    spec["scorers"].append({"kind": "judge", "name": "other", "spec": str(lenient)})
    generate = FakeEngine.generate

    def refuse(self: FakeEngine, requests: Any) -> Any:
        if self.facts.window_requests == 7:
            raise EngineError("The judge has no room.")
        return generate(self, requests)

    counts = "select scorer, count(*) from scores join runs using (run_id) where name = 'trial' group by all order by 1"
    with monkeypatch.context() as patch:
        patch.setattr(FakeEngine, "generate", refuse)
        with pytest.raises(RunFailedError, match=r"lacks scores of judges .* helpful, judge 1: .*no room"):
            evaluate(spec)
    assert flow_kit.query(data_dir, counts) == [("exact_match", 40), ("other", 40)]
    runs = flow_kit.query(data_dir, "select run_id, state from runs order by started_at")
    assert [state for _, state in runs] == ["completed", "failed", *["completed"] * 2]
    messages = "select message from runs where name = 'trial'"
    assert "helpful, judge 1: The judge has no room" in flow_kit.query(data_dir, messages)[0]
    page = (data_dir / "runs" / runs[0][0] / "report.md").read_text(encoding="utf-8")
    assert re.search(r"Run completed: 100% correct, .* Run", page) and "no room" in page
    assert evaluate(spec).run_id == runs[0][0]
    assert flow_kit.query(data_dir, counts) == [("exact_match", 40), ("helpful", 40), ("other", 40)]
    assert flow_kit.query(data_dir, messages) == [None]
    assert flow_kit.query(data_dir, "select run_id from runs order by started_at") == [run_id for run_id, _ in runs]


def test_stored_run_is_judged_later_and_again_without_asking(fake_spec, data_dir, tmp_path):
    run_id = evaluate(fake_spec).run_id
    report = data_dir / "runs" / run_id / "report.md"
    assert "strict" not in report.read_text(encoding="utf-8")
    path = write_judge(tmp_path, fake_spec)
    for _ in range(2):
        done = flow_kit.run_here("score", run_id, "--judge", path)
        assert done.code == 0, done.err
    assert "strict" in done.out and "strict" in report.read_text(encoding="utf-8")
    assert flow_kit.query(data_dir, "select count(*) from runs") == [2]
    stored = "select scorer, count(*), avg(value) from scores where run_id = ? group by all order by all"
    assert flow_kit.query(data_dir, stored, run_id) == [("exact_match", 40, 1.0), ("strict", 40, 1.0)]
    rescore_run(data_dir / "runs" / run_id, load_settings(), [])
    assert flow_kit.query(data_dir, stored, run_id) == [("exact_match", 40, 1.0), ("strict", 40, 1.0)]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"scorers": ["exact_match"]}, "one scorer of kind verdict"),
        ({"model": "/no/such/model"}, "/no/such/model"),
        ({"prompts": {"template": "{{ nothing }}"}}, "nothing, which answers do not have"),
        ({"scorers": [{"kind": "verdict", "scale": [5, 1]}]}, "scale"),
    ],
)
def test_unsuitable_judge_is_refused_before_the_model_starts(fake_spec, data_dir, tmp_path, changes, complaint):
    path = write_judge(tmp_path, fake_spec)
    flow_kit.write_spec(path, {**yaml.safe_load(path.read_text()), **changes})
    with pytest.raises((SpecError, ModelError), match=complaint):
        evaluate(judged_by(fake_spec, path))
    with pytest.raises(SpecError, match="metadata"):
        evaluate(judged_by(fake_spec, path, label="human"))
    assert not list((data_dir / "runs").glob("*"))


@pytest.mark.usefixtures("short_reports")
def test_interrupted_judging_goes_on_although_the_source_is_named_latest(fake_spec, data_dir, tmp_path, monkeypatch):
    evaluate(fake_spec)
    path = write_judge(tmp_path, fake_spec)
    prompts = {
        "source": {"kind": "run", "run": "latest:trial"}, "template": "{{ prompt }}", "columns": {"target": "target"},
    }  # fmt: skip
    chained = {**judged_by(fake_spec, path), "name": "again", "prompts": prompts}
    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(stages, "read_verdicts", switch_off)
        evaluate(chained)
    runs = flow_kit.query(data_dir, "select run_id, state, attempt from runs order by started_at")
    assert [row[1:] for row in runs] == [("completed", 1)] * 3
    run_id = runs[1][0]
    assert read_scores(data_dir, run_id) == []
    assert evaluate(chained).run_id == run_id
    assert flow_kit.query(data_dir, "select run_id, state, attempt from runs order by started_at") == runs
    assert read_scores(data_dir, run_id) == [(1.0, 40)]
    monkeypatch.setattr(driver, "begin_run", switch_off)
    with pytest.raises(RuntimeError):  # nothing was left to do, so a new run begins
        evaluate(chained)


@pytest.mark.rare
@pytest.mark.vllm
def test_workers_of_a_judge_have_their_own_devices_next_to_an_idle_engine(
    fake_spec, tiny_model, data_dir, tmp_path, monkeypatch, caplog
):
    """As in a suite: the judged run's engine waits for the next run, on the cores that the judge needs."""
    hosts: list[client.HostProcess] = []

    class Watched(client.HostProcess):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            hosts.append(self)

    caplog.set_level("INFO", "assayline")
    monkeypatch.setattr(client, "HostProcess", Watched)
    engine = {"backend": "offline", "device": "cpu", "args": flow_kit.SMALL_ENGINE, "env": flow_kit.ONE_THREAD}
    served = {"model": str(tiny_model), "engine": engine}
    fake_spec["prompts"]["limit"] = 4
    path = write_judge(tmp_path, {**fake_spec, **served})
    judge = yaml.safe_load(path.read_text())
    sampling = {"max_tokens": 60, "structured_outputs": {"regex": VERDICT}}
    flow_kit.write_spec(path, {**judge, "workers": 2, "sampling": sampling})
    spec = parse_spec({**judged_by(fake_spec, path), **served})
    with EnginePool() as engines:
        result = driver.evaluate(spec, driver.FrontEnd(load_settings()), Purpose(), engines)
        assert [host for host in hosts if host.exit_code is None] == []
    assert read_scores(data_dir, result.run_id)
    devices = re.findall(r"Opening an engine for \S+ on (\S+)", caplog.text)
    assert len(devices) == len(set(devices)) == len(hosts) == 3, "all cores, then half of them each"
