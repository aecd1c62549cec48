"""The suite as a flow and as a command: decisions, exit codes, the page; and how it goes on after a failure."""

import shutil
from pathlib import Path
from typing import Any

import flow_kit
import pytest
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from run_kit import complete

from assayline import evaluate
from assayline.benchmark.campaign import write_campaign
from assayline.benchmark.decision import NoGoError
from assayline.benchmark.suite import plan_suite
from assayline.comparison.baselines import pin_baseline
from assayline.engines.fake import FakeEngine
from assayline.errors import EngineError, RunFailedError
from assayline.flows.suite import suite
from assayline.run import campaign
from assayline.run.campaign import run_suite
from assayline.run.driver import FrontEnd
from assayline.settings import Settings, load_settings
from assayline.spec.file import load_spec, parse_spec
from assayline.spec.identity import canonical_json
from assayline.spec.suite import load_suite, parse_suite
from assayline.store.database import connect

pytestmark = [pytest.mark.prefect, pytest.mark.usefixtures("kept_charts")]
WRONG = {"chat.template": "{{ messages[0].content }} what", "prompts.limit": 40}
"""The same prompts, rendered so that the fake engine, which says the last word, is wrong."""
GATE = {"baseline": "stable", "max_accuracy_drop": 0.1, "max_slowdown": {}}
"""Limits that 40 equal answers keep."""


@pytest.fixture(scope="module")
def pinned(modest_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A data folder whose one run is the baseline, and the run's spec."""
    folder = tmp_path_factory.mktemp("pinned")
    spec = flow_kit.trial_spec(modest_model, flow_kit.write_rows(folder / "sums.jsonl", 40))
    settings = Settings(data_dir=folder / "data", lock_dir=folder / "locks")
    stable = complete(parse_spec(spec), settings, "never").run_id
    with connect(settings.database_path, 20) as connection:
        pin_baseline(connection, settings.data_dir, "stable", stable)
    return settings.data_dir, spec


@pytest.fixture
def path(pinned: tuple[Path, dict[str, Any]], data_dir: Path, tmp_path: Path) -> Path:
    """A spec whose baseline is pinned."""
    folder, spec = pinned
    shutil.copytree(folder, data_dir, dirs_exist_ok=True)
    return flow_kit.write_spec(tmp_path / "sums.yaml", {**spec, "gate": GATE})


def write_suite(path: Path, *evaluations: dict[str, Any]) -> Path:
    data = {"name": "release", "evaluations": [{"spec": str(path), **one} for one in evaluations]}
    return flow_kit.write_spec(path.parent / "release.yaml", data)


def run_ahead(file: Path, data_dir: Path) -> None:
    """Complete all runs of a suite without Prefect, each different one once."""
    settings, wanted = Settings(data_dir=data_dir), load_suite(file)
    plan = plan_suite(wanted, settings, "never")
    known = {name: run_id for run_id, name in flow_kit.query(data_dir, "select run_id, spec_json from runs")}
    for cell in plan.cells:
        done = known.get(canonical_json(cell.spec)) or complete(cell.spec, settings, "never").run_id
        plan.runs[cell.key] = [done]
    write_campaign(plan, settings)


@pytest.mark.usefixtures("short_reports")
def test_command_prints_the_decision_and_exits_with_its_code(path, data_dir):
    good, bad = {"name": "sums"}, {"name": "wrong", "overrides": WRONG}
    for evaluations, code, last in (
        ((good, {**bad, "tier": "advisory"}), 0, "GO: all 2 limits that count are shown to be kept."),
        ((good, bad), 1, "NO-GO: beyond the limit: wrong · modest (accuracy, exact_match)."),
        ((good, {**good, "name": "new", "baseline": "none"}), 13, "INCONCLUSIVE: open: new · modest."),
    ):
        file = write_suite(path, *evaluations)
        planned = flow_kit.run_here("suite", str(file), "--dry-run")
        assert planned.code == 0 and "Suite release: 2 of 2 runs left:" in planned.out
        run_ahead(file, data_dir)
        planned = flow_kit.run_here("suite", str(file), "--dry-run")
        assert planned.code == 0 and "0 of 2 runs of suite" in planned.out
        ended = flow_kit.run_here("suite", str(file))
        assert ended.code == code, ended.err
        assert ended.out.splitlines()[-1] == last
    assert "new · modest is not judged: There is no baseline 'none'" in ended.out
    assert len(list((data_dir / "suites").iterdir())) == 3
    assert flow_kit.run_here("suite", str(file), "--weight", "2").code == 2


@pytest.mark.usefixtures("short_reports")
def test_suite_is_judged_again_by_a_baseline_that_was_pinned_later(path, data_dir):
    file = write_suite(path, {"name": "sums", "baseline": "later"})
    assert "No suite has all runs of these evaluations" in flow_kit.run_here("suite", str(file), "--rejudge").err
    run_ahead(file, data_dir)
    assert flow_kit.run_here("suite", str(file)).code == 13
    (folder,) = (data_dir / "suites").iterdir()
    assert '"state state-other">INCONCLUSIVE<' in (folder / "report.html").read_text(encoding="utf-8")
    runs = sorted((data_dir / "runs").iterdir())
    assert flow_kit.run_here("baseline", "pin", "later", runs[0].name).code == 0
    again = flow_kit.run_here("suite", str(file), "--rejudge")
    assert (again.code, again.out.splitlines()[-1]) == (0, "GO: all 2 limits that count are shown to be kept."), (
        again.err
    )
    assert '"state state-GO">GO<' in (folder / "report.html").read_text(encoding="utf-8")
    assert ([folder], runs) == (list((data_dir / "suites").iterdir()), sorted((data_dir / "runs").iterdir()))
    strict = write_suite(path, {"name": "sums", "baseline": "later", "overrides": {"gate.max_accuracy_drop": 0.0}})
    assert flow_kit.run_here("suite", str(strict), "--rejudge").code == 13, "by today's limits"
    other = write_suite(path, {"name": "sums", "baseline": "later", "overrides": {"sampling.temperature": 0.5}})
    assert flow_kit.run_here("suite", str(other), "--rejudge").code == 2


def test_page_and_state_are_those_of_the_decision(path, data_dir, prefect_client):
    supporting = {"tier": "supporting", "name": "wrong", "weight": 3, "overrides": WRONG}
    file = write_suite(path, {"name": "sums"}, supporting)
    run_ahead(file, data_dir)
    state = suite(str(file), return_state=True)
    assert state.is_failed() and state.name == "Worse"
    with pytest.raises(NoGoError, match="NO-GO: beyond the limit: supporting evaluations · modest"):
        state.result()
    wanted = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[state.state_details.flow_run_id]))
    (page,) = prefect_client.read_artifacts(artifact_filter=wanted)
    assert page.key == "suite-release" and page.description == state.message
    text = page.data.replace("\\", "")
    assert "False NO-GO: at most 5% of decisions (2 tests" in text and "went from 100% to 0%" in text
    (folder,) = (data_dir / "suites").iterdir()
    assert "weighted mean" in (folder / "report.html").read_text(encoding="utf-8")
    saved = flow_kit.query(data_dir, "select distinct flow_run_id from verdict where run_id is not null")
    assert saved == [str(state.state_details.flow_run_id)]
    (wrong,) = flow_kit.query(data_dir, "select distinct run_id from verdict where verdict = 'fail'")
    report = data_dir / "runs" / wrong / "report.html"
    assert '"state state-worse"' in report.read_text(encoding="utf-8")
    report.unlink()
    assert flow_kit.run_here("report", wrong).code == 0
    assert '"state state-worse"' in report.read_text(encoding="utf-8"), "the report keeps the last verdict"


def test_a_missing_file_and_a_distrusted_judge_cost_their_evaluations_only(path, fake_spec, data_dir):
    verdict = '{{ prompt }} {"verdict":"{{ "no" if prompt[-2] in "13579" else "yes" }}"}'
    judge = {"model": fake_spec["model"], "engine": fake_spec["engine"], "scorers": [{"kind": "verdict"}]}
    judge["scorers"][0]["values"] = {"yes": 1, "no": 0}
    judge["prompts"] = {"source": {"kind": "run"}, "template": verdict}
    scorer = {"kind": "judge", "name": "odd", "spec": str(flow_kit.write_spec(path.parent / "judge.yaml", judge))}
    columns = {"target": "answer", "metadata": ["answer"]}
    judged = {"scorers": [{**scorer, "label": "answer", "min_kappa": 0.9}], "prompts.columns": columns}
    gone = {"name": "gone", "overrides": {"prompts.source.path": "gone.jsonl"}}
    file = write_suite(path, gone, {"name": "odd", "overrides": judged}, {"name": "sums"})
    planned = flow_kit.run_here("suite", str(file), "--dry-run")
    assert planned.code == 3 and "gone.jsonl does not exist" in planned.err
    with pytest.raises(
        RunFailedError,
        match=r"is INCONCLUSIVE, and runs did not .* gone · modest: .*gone.jsonl does .* odd · modest: Judge not",
    ):
        run_suite(load_suite(file), FrontEnd(load_settings()))
    (folder,) = (data_dir / "suites").iterdir()
    page = (folder / "report.md").read_text(encoding="utf-8").replace("\\", "")
    assert "gone · modest, critical: not judged. gone · modest: Prompt file gone.jsonl does not exist" in page
    assert "odd · modest, critical: not judged. odd · modest: Judge not trusted: odd: no verdict has" in page
    assert flow_kit.query(data_dir, "select distinct baseline_run_id is not null from verdict") == [True], (
        "sums is judged"
    )


@pytest.mark.usefixtures("short_reports")
def test_suite_goes_on_where_a_failure_stopped_it(path, data_dir, monkeypatch):
    wanted = parse_suite(
        {
            "evaluations": [
                {"spec": str(path), "name": "sums"},
                {"spec": str(path), "name": "few", "overrides": {"engine.max_concurrency": 7}},
            ]
        }
    )
    generate = FakeEngine.generate

    def refuse(self: FakeEngine, requests: Any) -> Any:
        if self.facts.window_requests == 7:
            raise EngineError("There is no room for this.")
        return generate(self, requests)

    with monkeypatch.context() as patch:
        patch.setattr(FakeEngine, "generate", refuse)
        with pytest.raises(EngineError, match="no room"):
            evaluate(load_spec(path, {"engine.max_concurrency": "7"}))
        with pytest.raises(RunFailedError, match=r"is INCONCLUSIVE, and .* few · modest: .*no room"):
            run_suite(wanted, FrontEnd(load_settings()))
    (folder,) = (data_dir / "suites").iterdir()
    assert "not judged" in (folder / "report.md").read_text(encoding="utf-8")
    few = "select count(*) from runs where json_extract(spec_json, '$.engine.max_concurrency')::int = 7"
    assert flow_kit.query(data_dir, few) == [2], "a new suite does not resume a run that is not its own"
    before = flow_kit.query(data_dir, "select run_id from runs where state = 'completed' order by run_id")
    result = run_suite(wanted, FrontEnd(load_settings()))
    assert (result.suite_id, result.decision) == (folder.name, "GO")
    after = flow_kit.query(data_dir, "select run_id from runs where state = 'completed' order by run_id")
    assert flow_kit.query(data_dir, few) == [2], "an undecided suite resumes its run"
    assert len(before) == 2 and len(after) == 3, "what was completed is not run again"


@pytest.mark.usefixtures("short_reports")
def test_suite_measures_the_baseline_again_in_turn_with_the_candidate(path, data_dir, monkeypatch):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setattr(campaign, "check_repeats", lambda cells, is_nightly: None)
    speed = {"gate.max_slowdown": {"output_tokens_per_s": 0.9}}
    file = write_suite(path, {"name": "wrong", "repeats": 2, "overrides": {**WRONG, **speed}})
    ended = flow_kit.run_here("suite", str(file))
    assert "NO-GO: beyond the limit: wrong" in ended.out, ended.err
    runs = flow_kit.query(
        data_dir, "select run_id, config_id, benchmark_id from runs where purpose = 'suite' order by started_at"
    )
    old, new = dict.fromkeys(config for _, config, _ in runs)
    assert [config for _, config, _ in runs] == [old, new, new, old]
    assert {session for *_, session in runs} == {folder.name for folder in (data_dir / "suites").iterdir()}
    judged = "select distinct run_id, baseline_run_id, words from verdict where limit_on = 'output_tokens_per_s'"
    ((run_id, baseline, words),) = flow_kit.query(data_dir, judged)
    assert (run_id, baseline) == (runs[2][0], runs[3][0])
    assert "there are 2 of the run and 2 of the baseline" in words
