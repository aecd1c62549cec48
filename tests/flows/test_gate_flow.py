"""The gate as a flow and as a command: states, exit codes, what the page shows; and evaluate → gate in one flow."""

import re
import shutil
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import flow_kit
import pytest
import yaml
from prefect import Flow
from prefect.blocks.webhook import Webhook
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.client.schemas.objects import Artifact, State
from prefect.states import Failed, Scheduled
from run_kit import complete

from assayline.comparison.baselines import pin_baseline
from assayline.comparison.gate import GateFailedError, SuspectError
from assayline.errors import SpecError
from assayline.flows.cli.notify import AUTOMATIONS, SCHEDULED
from assayline.flows.gate import gate
from assayline.flows.live.reporting import NOT_TRUSTED, SUSPECT, WORSE
from assayline.flows.nightly import nightly
from assayline.flows.reread import reread
from assayline.flows.suite import suite
from assayline.report.make import make_report
from assayline.run import campaign
from assayline.settings import Settings, load_settings
from assayline.spec.file import parse_spec
from assayline.store.database import connect

pytestmark = [pytest.mark.prefect, pytest.mark.usefixtures("kept_charts")]
WRONG = "{{ messages[0].content }} what"
NIGHTS = (nightly, suite)


@dataclass(frozen=True)
class Runs:
    """Four runs of the same prompts; `good` is pinned by that name."""

    good: str
    same: str
    bad: str
    """All wrong; its spec names `good` as its baseline."""
    lenient: str
    """The same, and its spec allows that."""


@pytest.fixture(scope="module")
def made(modest_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Runs]:
    """A data folder and the runs in it."""
    folder = tmp_path_factory.mktemp("judged")
    settings = Settings(data_dir=folder / "data", lock_dir=folder / "locks")
    spec = flow_kit.trial_spec(modest_model, flow_kit.write_rows(folder / "sums.jsonl", 40))
    limits = {"baseline": "good", "max_slowdown": {}}
    specs = (spec, spec, {**wrong(spec), "gate": limits}, {**wrong(spec), "gate": {**limits, "max_accuracy_drop": 1}})
    runs = Runs(*(complete(parse_spec(data), settings, "never").run_id for data in specs))
    pin(settings, "good", runs.good)
    return settings.data_dir, runs


@pytest.fixture
def runs(made: tuple[Path, Runs], data_dir: Path) -> Runs:
    folder, runs = made
    shutil.copytree(folder, data_dir, dirs_exist_ok=True)
    return runs


def wrong(spec: dict[str, Any]) -> dict[str, Any]:
    """The same prompts, rendered so that the fake engine, which says the last word, is wrong."""
    return {**spec, "chat": {"template": WRONG}}


def pin(settings: Settings, name: str, run_id: str) -> None:
    with connect(settings.database_path, 20) as connection:
        pin_baseline(connection, settings.data_dir, name, run_id)


def page_of(client: Any, state: State[Any], key: str) -> Artifact:
    """The one artifact of a flow run."""
    wanted = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[state.state_details.flow_run_id]))
    found = client.read_artifacts(artifact_filter=wanted)
    (page,) = [one for one in found if one.key != "progress"]
    assert (page.key, page.task_run_id) == (key, None)
    return cast(Artifact, page)


def read_report(data_dir: Path, run_id: str) -> str:
    return (data_dir / "runs" / run_id / "report.html").read_text(encoding="utf-8")


def test_a_worse_run_fails_the_flow_and_an_equal_one_completes_it(prefect_client, runs, data_dir):
    open_ = gate(runs.same, "good", return_state=True)
    assert open_.is_completed() and open_.name == "Inconclusive"
    assert [check.verdict for check in open_.result().checks] == ["pass", *["inconclusive"] * 4]
    page = page_of(prefect_client, open_, "gate-trial")
    assert "fails no limit against" in page.data and "Inconclusive: accuracy, exact" in page.data
    assert page.description == open_.message
    assert prefect_client.read_flow_run(open_.state_details.flow_run_id).name == f"gate of {runs.same}"

    failed = gate(runs.bad, return_state=True)
    assert failed.is_failed(), "its spec names the baseline"
    assert prefect_client.read_flow_run(failed.state_details.flow_run_id).state.is_failed()
    with pytest.raises(GateFailedError, match=r"exact_match went from 100% to 0% over 40 prompts"):
        failed.result()
    page = page_of(prefect_client, failed, "gate-trial")
    assert "fails its limits against" in page.description
    assert "40 worse" in page.data and "### Got worse: row" in page.data
    assert '"state state-worse"' in read_report(data_dir, runs.bad), "the report is written again"

    assert gate(runs.lenient[:-1], return_state=True).is_completed(), "its spec names the limit, too"


@pytest.mark.usefixtures("prefect_client")
def test_command_exits_with_a_code_and_a_sentence(runs, data_dir, command_env, prefect_api, monkeypatch):
    against_good = [runs.bad, "--baseline", "good"]
    env = {**command_env, "PREFECT_API_URL": prefect_api}
    failed = flow_kit.run_command([sys.executable, "-m", "assayline", "gate", *against_good], env)
    assert failed.code == 1, failed.err
    said = f"Run {runs.bad} fails its limits against {runs.good}: accuracy, exact_match."
    assert failed.err == f"error: {said}\n", "and no log lines"
    assert "fail: exact_match" in failed.out and "accuracy, exact_match" in failed.out
    assert failed.out.count("the limit is a drop of 1 point") == 1
    assert flow_kit.run_here("report", runs.bad[:-1]).code == 0
    assert (
        flow_kit.run_here("report", "--history", runs.bad[:-1]).code
        == flow_kit.run_here("report", "--history", "last").code
    )
    assert '"state state-worse"' in read_report(data_dir, runs.bad), "the report keeps the last verdict"
    within = flow_kit.run_here("gate", *against_good, "--max_accuracy_drop", "1")
    assert within.code == 0, within.err
    assert "pass: exact_match went from 100% to 0%" in within.out
    words = "Worse by more than chance: accuracy, exact_match."
    assert within.out.endswith(f"Run {runs.bad} is within its limits against {runs.good}. {words}\n")
    monkeypatch.setenv("PREFECT_API_URL", "")
    against = [runs.same, "--baseline", "good", "--dry-run"]
    for arguments, code in (([], 0), (["--detailed-exit-code"], 13)):
        open_ = flow_kit.run_here("gate", *against, *arguments)
        assert open_.code == code, open_.err
    assert flow_kit.run_here("gate", *against_good, "--max_accuracy_drop", "1", "--detailed-exit-code").code == 0
    for arguments, code, sentence in (
        ([runs.good], 2, "has no baseline. hint: pass --baseline"),
        ([runs.bad, "--baseline", "godo"], 2, "did you mean 'good'?"),
        (["nobody", "--baseline", "good"], 2, "Run 'nobody' is not in"),
        ([*against_good, "--max_drop", "1"], 2, "gate.max_drop: unknown key"),
        ([runs.bad, "--baseline", runs.bad], 8, "is its own baseline"),
    ):
        refused = flow_kit.run_here("gate", *arguments)
        assert (refused.code, sentence in refused.err) == (code, True), refused.err
        assert "Traceback" not in refused.err


def test_a_night_is_evaluated_and_judged_in_one_flow(prefect_client, prefect_api, fake_spec, data_dir, tmp_path):
    first = nightly(parse_spec(fake_spec), return_state=True)
    assert first.is_completed() and first.result().gate is None, "nothing is pinned yet"
    assert name_of(prefect_client, first) == "trial · 100% · not judged"
    pin(load_settings(), "nights", first.result().run_id)

    second = nightly(parse_spec(fake_spec), "nights", return_state=True)
    assert second.is_completed() and second.name == "Inconclusive", "as Prefect counts and as the page names it"
    words = r"100% correct, [\d,.]+ tokens/s\. Run \S+ fails no limit against \S+\. Inconclusive: accuracy, .*"
    assert re.fullmatch(words, str(second.message))
    page = page_of(prefect_client, second, "night-trial")
    assert page.description == second.message
    assert "2 counted runs cannot distinguish a level shift from chance" in page.data
    assert second.result().run_id != first.result().run_id
    assert name_of(prefect_client, second) == "trial · 100% · inconclusive"

    third = nightly(parse_spec(wrong(fake_spec)), "nights", return_state=True)
    assert third.is_failed() and third.name == "Worse"
    assert name_of(prefect_client, third) == "trial · 0% · worse"
    assert str(third.message).startswith("0% correct, ") and "40 worse, 0 better" in str(third.message)
    page = page_of(prefect_client, third, "night-trial")
    assert "fails its limits against" in page.description
    order = [
        "fails its limits against",
        "**Five questions**",
        "**Limits**",
        "### Got worse: row",
        "## History",
        "## Latency",
    ]
    places = [page.data.replace("\\", "").index(words) for words in order]
    assert places == sorted(places), "the verdict is first, with both answers of what flipped"
    assert "- Output of the run: `what`" in page.data and "- Output of the baseline: `" in page.data
    assert "1 of 2 runs judged by a gate failed a limit." in page.data and "![Accuracy](data:image/" in page.data
    assert "| settings | chat.template: " in page.data, "a night that failed its gate is in the history, too"
    assert len(page.data) < 300_000
    (newest,) = flow_kit.query(data_dir, "select max_by(run_id, started_at) from runs")
    assert '"state state-worse"' in read_report(data_dir, newest)
    assert flow_kit.run_here("report", newest).code == 0
    assert '"state state-worse"' in read_report(data_dir, newest), "the last verdict"
    assert (load_settings().data_dir / "histories" / "trial" / "report.html").exists()
    check_ledger(prefect_client, third)
    if flow_kit.BROWSER is not None:
        check_in_browser(f"{prefect_api.removesuffix('/api')}/artifacts/artifact/{page.id}", tmp_path)
    assert prefect_client.read_flow_run(third.state_details.flow_run_id).state.is_failed()
    with pytest.raises(SpecError, match="There is no baseline 'days'"):
        nightly(parse_spec(fake_spec), "days")
    assert flow_kit.query(data_dir, "select max_by(run_id, started_at) from runs") == [newest], "found before it starts"


def name_of(client: Any, night: State[Any]) -> str:
    """The flow run's name in the lists of Prefect's UI."""
    return str(client.read_flow_run(night.state_details.flow_run_id).name)


def deploy(client: Any, project: Path) -> dict[Flow[..., Any], UUID]:
    """Create a project's deployments of a nightly run and a suite, without a worker, as its prefect.yaml has them."""
    project.mkdir()
    entries = [{"name": f"{project.name}-{each.name}", "entrypoint": SCHEDULED[i]} for i, each in enumerate(NIGHTS)]
    (project / "prefect.yaml").write_text(yaml.safe_dump({"deployments": entries}))
    return {each: client.create_deployment(client.create_flow(each), f"{project.name}-{each.name}") for each in NIGHTS}


def test_notify_tells_each_project_on_a_server_of_its_bad_ends(prefect_client, tmp_path, monkeypatch):
    with flow_kit.listening(ours := []) as own_url, flow_kit.listening(theirs := []) as other_url:
        for project, url in (("theirs", other_url), ("ours", own_url)):
            deployments = deploy(prefect_client, tmp_path / project)
            monkeypatch.chdir(tmp_path / project)
            Webhook(method="POST", url=url, allow_private_urls=True).save(project, overwrite=True)
            for _ in "again":
                said = flow_kit.run_here("notify", f"webhook/{project}", "--test")
                assert said.code == 0, said.err
        tested = [f"test of {each.name}/{{}}-{each.name}: A test by `assayline notify --test`. (" for each in NIGHTS]
        for name, told in (("ours", ours), ("theirs", theirs)):
            flow_kit.wait_for(lambda told=told: len(told) == 2 * len("again"), f"{name} hear the tests", told)
            assert {message.partition("(")[0] + "(" for message in told} == {one.format(name) for one in tested}
        ours.clear()
        ends = [(each, name) for each in NIGHTS for name in (WORSE, SUSPECT, NOT_TRUSTED)]
        for each, name in ends:
            due = Scheduled(scheduled_time=datetime.now(UTC) + timedelta(days=1))
            run = prefect_client.create_flow_run_from_deployment(
                deployments[each], state=due, name=f"{each.name} {name}"
            )
            prefect_client.set_flow_run_state(run.id, Failed(name=name, message="kappa 0.1"), force=True)
        flow_kit.wait_for(lambda: len(ours) == len(ends), f"the webhook hears of {ends}", ours)
        assert len(theirs) == 2 * len("again")
    for each, name in ends:
        link = r"http\S+/runs/flow-run/[0-9a-f-]{36}"
        pattern = rf"{each.name} {name}: kappa 0.1 \(ours-{each.name}, {link}\)"
        assert any(re.fullmatch(pattern, message) for message in ours), ours


def test_notify_leaves_automations_as_they_are_if_the_new_ones_are_invalid(prefect_client, tmp_path, monkeypatch):
    deploy(prefect_client, tmp_path / "kept")
    monkeypatch.chdir(tmp_path / "kept")
    Webhook(method="POST", url="http://127.0.0.1:9/", allow_private_urls=True).save("kept", overwrite=True)
    assert flow_kit.run_here("notify", "webhook/kept").code == 0
    before = prefect_client.read_automations()
    shipped = AUTOMATIONS.read_text(encoding="utf-8")
    for number, (text, block, said) in enumerate(
        (
            (shipped.replace("state: CRASHED", "state: TIRED"), "kept", "is not valid: "),
            ("a list", "kept", "is not valid: "),
            (shipped, "nobody", "Unknown block webhook/nobody"),
        )
    ):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text, encoding="utf-8")
        refused = flow_kit.run_here("notify", f"webhook/{block}", "--file", path)
        assert (refused.code, said in refused.err) == (2, True), refused.err
    monkeypatch.chdir(tmp_path)
    assert "hint: run it where you run `prefect deploy`" in flow_kit.run_here("notify", "webhook/kept").err
    assert prefect_client.read_automations() == before


def check_in_browser(url: str, folder: Path) -> None:
    """The page of a worse night, in Prefect's UI."""
    images = "[...document.querySelectorAll('img')]"
    with flow_kit.opened_browser(folder / "profile") as page:
        page.open(url)
        page.wait_for(f"{flow_kit.PAGE_TEXT}.includes('fails its limits against')")
        shown = page.ask(flow_kit.PAGE_TEXT)
        assert "Got worse: row" in shown and "Output of the run: what" in shown
        assert page.ask(f"{images}.some(e => e.src.startsWith('data:image/'))")
        page.wait_for(f"{images}.some(e => e.complete && e.naturalWidth > 100)")


def check_ledger(client: Any, night: State[Any]) -> None:
    """A person's gate of a night that is worse adds a judgement, a dry run none; the history has the night's own."""
    data_dir, night_id = load_settings().data_dir, str(night.state_details.flow_run_id)
    (run_id,) = flow_kit.query(data_dir, "select run_id from runs order by started_at desc limit 1")
    assert gate(run_id, "nights", {"max_accuracy_drop": 1}, return_state=True).is_completed()
    judged = flow_kit.query(
        data_dir,
        "select distinct (judged_at, flow_run_id, limits_json ->> '$.max_accuracy_drop') from verdicts "
        "where run_id = ? order by all",
        run_id,
    )
    assert [row[1:] for row in judged] == [(night_id, "0.01"), (None, "1.0")]
    verdict = "select (verdict, flow_run_id) from gate_verdict where run_id = ?"
    assert flow_kit.query(data_dir, verdict, run_id) == [("fail", night_id)]
    written = make_report(load_settings(), run_id, "nights", kind="history")
    assert "1 of 2 runs judged by a gate failed a limit." in written.text

    count = "select count(*) from verdicts"
    before, flow_runs = flow_kit.query(data_dir, count), len(client.read_flow_runs())
    tried = flow_kit.run_here("gate", run_id, "--baseline", "nights", "--dry-run")
    assert tried.code == 1 and "fails its limits" in tried.err and "exact_match went from" in tried.out
    assert flow_kit.run_here("gate", run_id, "--baseline=nights", "--dry-run", "--max_accuracy_drop", "1").code == 0
    assert (flow_kit.query(data_dir, count), len(client.read_flow_runs())) == (before, flow_runs)


def test_compare_prints_the_difference_and_the_flips_and_records_no_verdict(runs, data_dir):
    compared = flow_kit.run_here("compare", runs.bad, runs.same)
    assert compared.code == 0, compared.err
    *_, last = compared.out.splitlines()
    assert last.startswith("Compared with the baseline, exact_match changed by −100")
    assert last.endswith("40 prompts got worse and 0 better.")
    assert f"{runs.same} of 20" in compared.out and "output tokens/s" in compared.out
    assert "Speed of one run each is not judged here" in compared.out
    assert flow_kit.run_here("compare", runs.same, runs.good).out.endswith("; no prompt got worse or better.\n")
    assert compared.out.count("1 → 0") == 4 and f"assayline view {runs.bad} {runs.same}" in compared.out
    assert flow_kit.query(data_dir, "select count(*) from raw.verdicts") == [0]
    with pytest.raises(SystemExit):
        flow_kit.run_here("compare", runs.bad)
    unknown = flow_kit.run_here("compare", runs.bad, "nothing")
    assert unknown.code == 2 and "nothing" in unknown.err


@pytest.mark.usefixtures("prefect_client", "runs", "short_reports")
def test_nightly_is_judged_while_another_program_reads_the_database(data_dir, modest_model, tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAYLINE_DATABASE_WAIT_S", "0.1")
    spec = flow_kit.trial_spec(modest_model, flow_kit.write_rows(tmp_path / "sums.jsonl", 40))
    limits = {"baseline": "good", "max_slowdown": {}}
    with flow_kit.database_held(data_dir, read_only=True):
        night = nightly(parse_spec({**wrong(spec), "gate": limits}), return_state=True)
        with pytest.raises(GateFailedError, match="exact_match"):
            night.result()
    assert flow_kit.query(data_dir, "select count(*) from runs") == [5]
    failed = "select limit_on from verdicts where verdict = 'fail'"
    assert flow_kit.query(data_dir, failed) == ["accuracy, exact_match"]


@pytest.mark.usefixtures("runs")
def test_nightly_is_suspect_of_a_drop_that_a_gate_by_hand_fails(prefect_client, data_dir, modest_model, tmp_path):
    spec = flow_kit.trial_spec(modest_model, flow_kit.write_rows(tmp_path / "sums.jsonl", 40))
    wrong_below_8 = "{{ messages[0].content }}{% if messages[0].content.split()[2] | int < 8 %} what{% endif %}"
    limits = {"baseline": "good", "max_slowdown": {}}
    night = nightly(parse_spec({**spec, "chat": {"template": wrong_below_8}, "gate": limits}), return_state=True)
    assert night.is_crashed() and night.name == "Suspect"
    stored = prefect_client.read_flow_run(night.state_details.flow_run_id)
    assert (stored.state.name, stored.name) == ("Suspect", "trial · 80% · suspect")
    with pytest.raises(SuspectError) as raised:
        night.result()
    checks = {check.check: check for check in raised.value.report.checks}
    assert {check.verdict for check in checks.values()} == {"pass", "suspect"}
    assert "not enough for a nightly run, which needs p ≤ 0.0017." in checks["accuracy, exact_match"].words
    (run_id,) = flow_kit.query(data_dir, "select max_by(run_id, started_at) from runs")
    for said in (
        "from 100% to 80%",
        "8 worse, 0 better",
        "one comparison alone would fail. Suspect: accuracy, exact_match.",
    ):
        assert said in stored.state.message
    assert " Worse: row 0, row 1, row 2, row 3, row 4, row 5, row 6, row 7." in stored.state.message
    assert f"hint: `assayline view {run_id} {raised.value.report.baseline}`" in stored.state.message
    assert '"state state-suspect"' in read_report(data_dir, run_id)
    assert flow_kit.query(data_dir, "select verdict from run where run_id = ?", run_id) == ["suspect"]
    by_cron = flow_kit.run_here("gate", run_id, "--nightly", "--dry-run")
    assert (by_cron.code, by_cron.err.startswith("warning: ")) == (15, True) and "suspect: exact_match" in by_cron.out
    with pytest.raises(GateFailedError, match="8 worse, 0 better"):
        gate(run_id)


@pytest.mark.usefixtures("short_reports")
def test_gate_remeasures_both_interleaved_in_one_session(runs, data_dir, monkeypatch):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setattr(campaign, "FEWEST_PAIRS", 2)
    limits = ["--max_accuracy_drop", "1", "--max_slowdown", "{output_tokens_per_s: 0.9}"]
    said = flow_kit.run_here("gate", runs.bad, "--remeasure", *limits).out
    assert "there are 2 of the run and 2 of the baseline" in said
    query = "select config_id, benchmark_id from runs where benchmark_id is not null order by started_at"
    sides, sessions = zip(*flow_kit.query(data_dir, query), strict=True)
    old, new = dict.fromkeys(sides)
    assert list(sides) == [old, new, new, old] and len(set(sessions)) == 1
    refused = flow_kit.run_here("gate", runs.same, "--baseline", "good", "--remeasure")
    assert refused.code == 2 and "have the same configuration" in refused.err


@pytest.mark.usefixtures("short_reports")
def test_a_reread_is_a_flow_run_of_three_readings_that_fails_beyond_the_limit(
    fake_spec, settings, prefect_client, monkeypatch, tmp_path
):
    """Its verdict is a state, and that of the command an exit code. The limit stands in for another engine."""
    reference = complete(parse_spec(fake_spec), settings).run_id
    monkeypatch.setenv("ASSAYLINE_DATA_DIR", str(settings.data_dir))
    path = flow_kit.write_spec(tmp_path / "spec.yaml", fake_spec)
    report = reread(reference, str(path), prompts=8)
    assert (report.verdict, report.baseline) == ("pass", reference)
    [flow_run, *_] = [one for one in prefect_client.read_flow_runs() if one.name == f"reread of {reference}"]
    names = {one.name.partition(" · ")[0] for one in prefect_client.read_flow_runs()}
    assert flow_run.state.is_completed() and {f"trial read by {by}" for by in ("itself", "trial")} <= names
    monkeypatch.setattr("assayline.stats.rereads.LIMIT", 0.5)
    state = cast(State[Any], reread(reference, str(path), prompts=8, return_state=True))
    assert (state.name, state.type.value) == (WORSE, "FAILED")
    with pytest.raises(GateFailedError, match="is shown beyond the limit"):
        state.result()
