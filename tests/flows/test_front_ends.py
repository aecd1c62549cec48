"""The same specs from Python, on the command line and in a flow: the databases have the same rows."""

import itertools
import json
import re
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import flow_kit
import pytest
from media_kit import encode, picture
from run_kit import PATIENCE_S, begin_and_vanish, complete

from assayline import api, evaluate
from assayline.benchmark.campaign import write_campaign
from assayline.comparison.baselines import pin_baseline
from assayline.errors import AssaylineError, RunFailedError
from assayline.flows import cli
from assayline.flows.benchmark import benchmark as benchmark_flow
from assayline.flows.evaluate import evaluate as evaluate_flow
from assayline.flows.gate import gate as gate_flow
from assayline.flows.nightly import nightly
from assayline.flows.suite import suite as suite_flow
from assayline.report.make import Written, make_report
from assayline.settings import Settings, load_settings
from assayline.spec.file import load_spec
from assayline.store.database import connect

pytestmark = [pytest.mark.prefect, pytest.mark.usefixtures("prefect_client")]

TABLES = ("runs", "prompts", "requests", "completions", "engine_events", "scorers", "scores")
OF_A_RUN = r"(\w+_at|.*_s|run_id|spec_hash|config_id|benchmark_id|host_name|details_json|expected_output_tokens)"
"""Columns with times and with ids of runs."""
FRONT_ENDS: dict[str, Callable[[Path], object]] = {
    "python": lambda spec: evaluate(spec, tags=["ci"]),
    "command": lambda spec: cli.run("evaluate", [str(spec), "--tag", "ci"]),
    "flow": lambda spec: evaluate_flow(str(spec), tags=["ci"]),
}

COMMANDS = {
    "python": "from assayline import evaluate; evaluate({!r})",
    "command": "from assayline.flows.cli import run; run('evaluate', [{!r}])",
    "flow": "from assayline.flows.evaluate import evaluate; evaluate({!r})",
}
"""The same in a process of its own, which can be killed."""


def change_judged(spec: dict[str, Any], folder: Path) -> None:
    verdict = "{{ 'maybe' if prompt[-2] in '13579' else 'correct' }}"
    judge = {
        "model": spec["model"],
        "engine": spec["engine"],
        "prompts": {"source": {"kind": "run"}, "template": '{{ prompt }} {"verdict":"' + verdict + '","reason":"…"}'},
        "scorers": [{"kind": "verdict", "values": {"correct": 1, "incorrect": 0}}],
    }
    path = flow_kit.write_spec(folder / "judge.yaml", judge)
    spec["scorers"] = ["exact_match", {"kind": "judge", "name": "right", "spec": str(path)}]


def change_failed(spec: dict[str, Any], folder: Path) -> None:
    rows = [{"question": "1 + 1", "answer": "1"}, {"answer": "a row without a question"}]
    spec["prompts"]["source"] = {"kind": "inline", "rows": rows}
    spec["max_error_share"] = 0.1


def change_media(spec: dict[str, Any], folder: Path) -> None:
    for number in range(2):
        (folder / f"{number}.png").write_bytes(encode(picture(8, 8, "L", number)))
    rows = [{"question": f"What is {n}?", "answer": f"{n}?", "image": str(folder / f"{n}.png")} for n in range(2)]
    spec["prompts"]["source"] = {"kind": "inline", "rows": rows}
    spec["prompts"]["columns"]["images"] = "image"
    spec["chat"] = {"placeholders": {"image": "<image>"}, "template": "plain"}


CHANGES: dict[str, Callable[[dict[str, Any], Path], object]] = {
    "judged": change_judged,
    "repeated": lambda spec, folder: spec["prompts"].update(repeats=3),
    "resumed": lambda spec, folder: None,
    "failed": change_failed,
    "media": change_media,
    "killed": lambda spec, folder: None,
}


def kill_before_reports(spec: Path, folder: Path, env: dict[str, str], api: str) -> None:
    """Kill a run of each front end when it has all its answers and no report."""
    with ExitStack() as stack:
        processes = {}
        for name, code in COMMANDS.items():
            point = json.dumps([("flow", "*/report.html", 1)])
            own = {"ASSAYLINE_DATA_DIR": str(folder / name), "KILL_AT": point}
            own["PREFECT_API_URL"] = api if name == "flow" else ""
            words = [sys.executable, "-c", code.format(str(spec)), "evaluate"]
            log = folder / f"{name}.log"
            processes[log] = stack.enter_context(flow_kit.started(words, {**env, **own}, log))
        for log, process in processes.items():
            assert process.wait(PATIENCE_S) == -signal.SIGKILL, log.read_text()


def read_database(data_dir: Path) -> dict[str, list[str]]:
    runs = flow_kit.query(data_dir, "select run_id from raw.runs order by started_at")
    found = {}
    for table in TABLES:
        query = f"select columns(lambda c: not regexp_full_match(c, '{OF_A_RUN}')), run_id from raw.{table}"
        rows = "\n".join(sorted(map(repr, flow_kit.query(data_dir, query))))
        found[table] = sorted(re.sub("|".join(runs), lambda run: f"run {runs.index(run[0])}", rows).split("\n"))
    return found


# The others differ from it in what all front ends have from one driver, or are killed, as commands are in test_kills.
@pytest.mark.parametrize(
    "change", [pytest.param(one, marks=[] if one == "judged" else pytest.mark.rare) for one in CHANGES]
)
@pytest.mark.usefixtures("short_reports")
def test_front_ends_write_the_same_rows(change, fake_spec, tmp_path, monkeypatch, charts, prefect_env, prefect_api):
    CHANGES[change](fake_spec, tmp_path)
    spec = flow_kit.write_spec(tmp_path / "spec.yaml", fake_spec)
    if change == "killed":
        kill_before_reports(spec, tmp_path, prefect_env, prefect_api)
    found = {}
    for name, start in FRONT_ENDS.items():
        data_dir = tmp_path / name
        with monkeypatch.context() as patch:
            patch.setenv("ASSAYLINE_DATA_DIR", str(data_dir))
            if name == "command":
                patch.setenv("PREFECT_API_URL", "")
            if change == "resumed":
                begin_and_vanish(load_spec(spec), load_settings(), 3)
            with suppress(RunFailedError):
                start(spec)
        found[name] = read_database(data_dir)
        states = flow_kit.query(data_dir, "select state from runs")
        assert ["ci"] in flow_kit.query(data_dir, "select tags from runs where purpose = 'evaluate'")
        assert states == {"judged": ["completed"] * 3, "failed": ["failed"]}.get(change, ["completed"])
        assert len(list(data_dir.glob("runs/*/report.html"))) == len(states)
        assert change != "media" or all(".png" in row for row in found[name]["requests"])
    assert found["command"] == found["python"]
    assert found["flow"] == found["python"]


@pytest.fixture(scope="module")
def compared(modest_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path], str]:
    """A data folder with a run that is pinned as `stable` and a worse one; their specs, and the worse run's id."""
    folder = tmp_path_factory.mktemp("compared")
    settings = Settings(data_dir=folder / "data", lock_dir=folder / "locks")
    good = flow_kit.trial_spec(modest_model, flow_kit.write_rows(folder / "sums.jsonl", 40))
    good["gate"] = {"max_slowdown": {}}
    wrong = {**good, "name": "wrong", "chat": {"template": "{{ messages[0].content }} what"}}
    specs = [flow_kit.write_spec(folder / f"{name}.yaml", data) for name, data in (("good", good), ("wrong", wrong))]
    stable, judged = (complete(load_spec(path), settings).run_id for path in specs)
    with connect(settings.database_path, 20) as connection:
        pin_baseline(connection, settings.data_dir, "stable", stable)
    return settings.data_dir, specs, judged


NIGHTS: dict[str, Callable[[Path], object]] = {
    "python": lambda spec: api.night(spec, "stable", "auto"),
    "command": lambda spec: cli.run("night", [str(spec), "--baseline", "stable", "--resume"]),
    "flow": lambda spec: nightly(str(spec), "stable", "auto", return_state=True),
}


@pytest.mark.usefixtures("short_reports")
def test_every_front_judges_and_tells_of_a_night_in_one_way(compared, tmp_path, monkeypatch):
    """Without Prefect, a webhook hears of a night that is worse; with it, automations do."""
    made, (_, spec), _ = compared
    found, told = {}, {}
    for name, start in NIGHTS.items():
        with monkeypatch.context() as patch, flow_kit.listening(heard := []) as url:
            patch.setenv("ASSAYLINE_DATA_DIR", str(tmp_path / name))
            patch.setenv("ASSAYLINE_WEBHOOK", url)
            if name == "command":
                patch.setenv("PREFECT_API_URL", "")
            shutil.copytree(made, tmp_path / name)
            with patch.context() as killing, suppress(KilledError):
                killing.setattr("assayline.run.driver.gate_run", vanish_at(1))
                start(spec)
            start(spec)
        rows = "select limit_on, verdict, candidate_value, baseline_value, limit_value from verdicts order by ordinal"
        purposes = "select purpose, state from runs order by started_at"
        found[name] = flow_kit.query(tmp_path / name, rows), flow_kit.query(tmp_path / name, purposes)
        told[name] = [json.loads(message)["text"].partition(", run")[0] for message in heard]
        assert (tmp_path / name / "histories" / "wrong" / "report.html").exists()
    assert ("accuracy, exact_match", "fail", 0.0, 1.0, 0.01) in found["python"][0]
    assert found["python"][1] == [*[("evaluate", "completed")] * 2, ("night", "completed")]
    assert found["command"] == found["flow"] == found["python"]
    assert told == {"python": ["Night of wrong"], "command": ["Night of wrong"], "flow": []}


SWEEP = {"sampling.max_tokens": [1, 4]}
SUITE: dict[str, Callable[[Path, str], object]] = {
    "python": lambda suite, run_id: api.suite(suite),
    "command": lambda suite, run_id: cli.run("suite", [str(suite)]),
    "flow": lambda suite, run_id: suite_flow(str(suite), return_state=True),
}
CAMPAIGNS: dict[str, dict[str, Callable[[Path, str], object]]] = {
    "suite": SUITE,
    "suite with models": SUITE,
    "benchmark": {
        "python": lambda suite, run_id: api.benchmark(suite.with_name("good.yaml"), repeats=1, sweep=SWEEP),
        "command": lambda suite, run_id: cli.run(
            "benchmark", [str(suite.with_name("good.yaml")), "--repeats", "1", "--sweep", "sampling.max_tokens=1,4"]
        ),
        "flow": lambda suite, run_id: benchmark_flow(
            str(suite.with_name("good.yaml")), repeats=1, sweep=SWEEP, return_state=True
        ),
    },
    "gate": {
        "python": lambda suite, run_id: api.gate(run_id, "stable", is_remeasured=True),
        "command": lambda suite, run_id: cli.run("gate", [run_id, "--baseline", "stable", "--remeasure"]),
        "flow": lambda suite, run_id: gate_flow(run_id, "stable", is_remeasured=True, return_state=True),
    },
}


class KilledError(BaseException):
    """In place of a signal: nothing in the product catches it."""


# Flows and commands call the same operations, so that the others can differ from it in their arguments alone.
@pytest.mark.parametrize(
    "kind", [pytest.param(one, marks=[] if one == "suite" else pytest.mark.rare) for one in CAMPAIGNS]
)
@pytest.mark.usefixtures("short_reports")
def test_every_front_does_the_same_campaign_and_goes_on_after_a_kill(kind, compared, tiny_model, tmp_path, monkeypatch):
    """Suites, a sweep, and a gate that measures both sides again: equal runs and verdicts, each page written once."""
    made, specs, judged = compared
    shutil.copy(specs[0], tmp_path)
    cells = [{"spec": str(path), "baseline": "stable"} for path in specs]
    asked: dict[str, Any] = {"evaluations": cells}
    if kind == "suite with models":
        copy = shutil.copytree(tiny_model, tmp_path / "copy")
        template = copy / "chat_template.jinja"
        template.write_text(template.read_text() + "what")
        asked = {"evaluations": cells[:1], "models": [str(tiny_model), str(copy)]}
    suite = flow_kit.write_spec(tmp_path / "suite.yaml", asked)
    found = {}
    for name, start in CAMPAIGNS[kind].items():
        data_dir = tmp_path / name
        written: list[str] = []
        shutil.copytree(made, data_dir)
        with monkeypatch.context() as patch:
            patch.setenv("ASSAYLINE_DATA_DIR", str(data_dir))
            if name == "command":
                patch.setenv("PREFECT_API_URL", "")
            with patch.context() as killing, suppress(KilledError):
                killing.setattr("assayline.run.campaign.write_campaign", vanish_at(4))  # one run is done
                start(suite, judged)
            patch.setattr("assayline.run.stages.make_report", noting(written))
            with suppress(AssaylineError):
                start(suite, judged)
        (campaign,) = data_dir.glob(f"{(folder := kind.split()[0])}s/*/{folder}.json")
        runs = json.loads(campaign.read_text())["runs"]
        assert [len(ids) for ids in runs.values()] == [1, 1], "the run that was there is kept"
        rows = "select limit_on, verdict, candidate_value, baseline_value, limit_value from verdicts order by all"
        decided = "select metric, detail, value, difference, low, high, p_value, verdict from comparison "
        decided += "where metric in ('accuracy', 'mean_accuracy') order by all"
        found[name] = [read_database(data_dir), *(flow_kit.query(data_dir, query) for query in (rows, decided))]
        assert len(written) == len(set(written)), "each page is written once"
        assert ("accuracy, exact_match", "fail", 0.0, 1.0, 0.01) in found[name][1] or kind == "benchmark"
        assert len(found[name][2]) > 0
    assert found["command"] == found["python"]
    assert found["flow"] == found["python"]


def vanish_at(number: int, function: Callable[..., None] = write_campaign) -> Callable[..., None]:
    """Return the function, whose call of this number ends the process."""
    calls = itertools.count(1)

    def call(*of: Any, **more: Any) -> None:
        if next(calls) == number:
            raise KilledError
        function(*of, **more)

    return call


def noting(written: list[str]) -> Callable[..., Any]:
    """Return a `make_report` that notes the runs of its pages."""

    def make(settings: Settings, run_id: str, baseline: str | None = None) -> Written:
        written.append(run_id)
        return make_report(settings, run_id, baseline)

    return make
