"""Deployed runs on a real server, by a real worker: nights that are missing, killed and green; a cancelled run.

The tests are one story, in order, on one data folder, with a webhook that listens. Nights that are worse are in
test_gate_flow.py.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import flow_kit
import httpx
import pytest
import yaml
from prefect import settings
from prefect.client.schemas.actions import WorkPoolUpdate
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.states import AwaitingRetry, Cancelling
from run_kit import complete

from assayline.comparison.baselines import pin_baseline
from assayline.flows.cli.init import DEFAULT_MODEL, create_project
from assayline.flows.cli.notify import AUTOMATIONS
from assayline.settings import Settings
from assayline.spec.file import parse_spec
from assayline.store.database import connect
from assayline.store.locks import name_holder

pytestmark = pytest.mark.prefect

FAILED, DIED = "assayline: a night of DEPLOYMENT failed", "assayline: a run died"
MISSING = "assayline: a night of DEPLOYMENT has not ended"
WORKER_COMMAND = [sys.executable, "-m", "prefect", "worker", "start", "--pool", "evaluations", "--type", "process"]
SET_DIRECTORY = "prefect.deployments.steps.set_working_directory"
MISSING_S = 10


@dataclass
class Story:
    """Setup that all nightly runs share."""

    data_dir: Path
    specs: Path
    spec: dict[str, Any]
    """Right answers; a run of it is pinned as `stable`."""
    told: list[str]
    """What the webhook was sent."""
    killed: UUID | None = None
    """The flow run of the night that was killed."""
    killed_run: str = ""

    def begin(self, client: Any, spec: dict[str, Any]) -> UUID:
        """Start a nightly run by its deployment, as the schedule does."""
        deployment = client.read_deployment_by_name("nightly/nightly")
        path = flow_kit.write_spec(self.specs / f"{len(list(self.specs.iterdir()))}.yaml", spec)
        parameters = {**deployment.parameters, "spec": str(path), "baseline": "stable"}
        run: FlowRun = client.create_flow_run_from_deployment(deployment.id, parameters=parameters)
        return run.id

    def newest_run(self) -> Path:
        return max((self.data_dir / "runs").iterdir())


def end_of(client: Any, night: UUID) -> FlowRun:
    """The flow run when it has ended."""

    def look() -> FlowRun | None:
        run: FlowRun = client.read_flow_run(night)
        return run if run.state is not None and run.state.is_final() else None

    ended = flow_kit.wait_for(look, "the night ends")
    assert ended is not None
    return ended


def create_automations(api: str, folder: Path, within_s: dict[str, int | None]) -> None:
    """Create automations of `assayline notify` by name, with time limits for a test, or their own (None)."""
    known = yaml.safe_load(AUTOMATIONS.read_text())["automations"]
    chosen = [one for one in known if one["name"] in within_s]
    for one in chosen:
        one["trigger"]["within"] = within_s[one["name"]] or one["trigger"]["within"]
    path = folder / "notify.yaml"
    path.write_text(yaml.safe_dump({"automations": chosen}))
    with settings.temporary_settings({settings.PREFECT_API_URL: api}):
        assert flow_kit.run_here("notify", "webhook/nights", "--file", path).code == 0


def delete_automations(api: str, words: str = "assayline: ") -> None:
    """Delete automations with these words in their names: a limit of seconds would fire in other tests."""
    for one in httpx.post(f"{api}/automations/filter", json={}).json():
        if words in one["name"]:
            httpx.delete(f"{api}/automations/{one['id']}")


def create_block(api: str, url: str) -> None:
    """A webhook that the automations send by."""
    from prefect.blocks.webhook import Webhook

    with settings.temporary_settings({settings.PREFECT_API_URL: api}):
        Webhook(method="POST", url=url, allow_private_urls=True).save("nights", overwrite=True)


@pytest.fixture(scope="module")
def deployments(prefect_env: dict[str, str], prefect_api: str) -> None:
    """All deployments of prefect.yaml in their pool."""
    env = {**prefect_env, "PREFECT_API_URL": prefect_api, "PWD": str(flow_kit.ROOT)}
    pool = {"name": "evaluations", "type": "process"}
    httpx.post(f"{prefect_api}/work_pools/", json=pool).raise_for_status()  # its worker adds what such a pool has
    flow_kit.run_prefect(env, "--no-prompt", "deploy", "--all")


@pytest.fixture(scope="module")
def deployed_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data folder of all deployed runs."""
    folder = tmp_path_factory.mktemp("deployed") / "data"
    yield folder
    flow_kit.kill_all(flow_kit.processes_of(folder))


@pytest.fixture(scope="module")
def deployed_env(prefect_env: dict[str, str], prefect_api: str, deployed_data: Path) -> dict[str, str]:
    """Environment of a worker."""
    return {
        **prefect_env,
        "PREFECT_API_URL": prefect_api,
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        "ASSAYLINE_DATA_DIR": str(deployed_data),
        "ASSAYLINE_LOCK_DIR": str(deployed_data.parent / "locks"),
        "ASSAYLINE_FLUSH_INTERVAL_S": "0.1",
        "ASSAYLINE_LOAD_INTERVAL_S": "0.5",
        "ASSAYLINE_DATABASE_WAIT_S": "1",
        "PWD": str(flow_kit.ROOT),
    }


@pytest.fixture(scope="module")
def worker(deployments: None, deployed_env: dict[str, str], deployed_data: Path) -> Iterator[Path]:
    """A worker of the pool; gives its log."""
    log = deployed_data.parent / "worker.log"
    with flow_kit.started(WORKER_COMMAND, deployed_env, log):
        yield log


@pytest.fixture(scope="module")
def story(
    deployments: None,
    prefect_api: str,
    deployed_data: Path,
    modest_model: Path,
    charts: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Story]:
    """A pinned run, a webhook that listens and the automations of a night."""
    folder = tmp_path_factory.mktemp("nights")
    (folder / "specs").mkdir()
    shutil.copytree(charts, deployed_data / "cache")
    spec = flow_kit.trial_spec(modest_model, flow_kit.write_rows(folder / "sums.jsonl", 40))
    own = Settings(data_dir=deployed_data, lock_dir=deployed_data.parent / "locks")
    stable = complete(parse_spec(spec), own, "never").run_id
    with connect(own.database_path, 20) as connection:
        pin_baseline(connection, deployed_data, "stable", stable)
    told: list[str] = []
    with flow_kit.listening(told) as url:
        create_block(prefect_api, url)
        create_automations(prefect_api, folder, {FAILED: None, DIED: None})
        story = Story(deployed_data, folder / "specs", spec, told)
        try:
            yield story
        finally:
            delete_automations(prefect_api)


def heard(story: Story, words: str) -> str:
    """The first message with these words, a regular expression."""
    return flow_kit.wait_for(
        lambda: [message for message in story.told if re.search(words, message)], f"the webhook hears {words!r}"
    )[0]


@pytest.mark.usefixtures("deployments")
def test_each_deployment_has_its_flow_and_its_form(prefect_client):
    fields = {
        "nightly": {"spec", "baseline", "resume"},
        "evaluate": {"spec", "resume"},
        "benchmark": {"spec", "sweep", "profile"},
        "suite": {"suite", "resume", "is_nightly"},
        "gate": {"run_id", "baseline", "limits"},
    }
    for name, wanted in fields.items():
        deployment = prefect_client.read_deployment_by_name(f"{name}/{name}")
        assert deployment.entrypoint == f"assayline.flows.{name}.{name}"
        assert wanted <= set(deployment.parameter_openapi_schema["properties"])


@pytest.mark.usefixtures("deployments")
def test_nights_of_two_projects_are_both_scheduled(prefect_env, prefect_api, prefect_client, tmp_path):
    for folder in ("ours", "theirs", "copy/ours"):
        create_project(tmp_path / folder, DEFAULT_MODEL)
    for folder in ("ours", "theirs"):
        env = {**prefect_env, "PREFECT_API_URL": prefect_api, "PWD": str(tmp_path / folder)}
        command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
        subprocess.run(command, cwd=tmp_path / folder, env=env, check=True)
    for folder in ("ours", "theirs"):
        night = prefect_client.read_deployment_by_name(f"nightly/{folder}-nightly")
        assert [each.active for each in night.schedules] == [True]
        assert night.pull_steps[0][SET_DIRECTORY] == {"directory": str(tmp_path / folder)}


def test_a_night_that_nobody_starts_is_told_of(story, worker, prefect_client, prefect_api, tmp_path):
    """The pool is paused, while its worker starts."""
    prefect_client.update_work_pool("evaluations", WorkPoolUpdate(is_paused=True))
    create_automations(prefect_api, tmp_path, {MISSING: MISSING_S})
    night = story.begin(prefect_client, story.spec)
    message = heard(story, "has not ended")
    assert prefect_client.read_flow_run(night).state_name == "Late"
    delete_automations(prefect_api, MISSING.partition("DEPLOYMENT")[2])
    name = prefect_client.read_flow_run(night).name
    assert message.startswith(f"{name} has not ended 3.5 hours after it was due: it is Late (nightly, http")
    assert f"/runs/flow-run/{night}" in message
    prefect_client.delete_flow_run(night)
    prefect_client.update_work_pool("evaluations", WorkPoolUpdate(is_paused=False))
    story.told.clear()


def test_a_suspect_night_is_told_of_with_its_prompts(story, worker, prefect_client, deployed_env):
    """The drop of 8 of 40 fails one comparison, and no night."""
    wrong_below_8 = "{{ messages[0].content }}{% if messages[0].content.split()[2] | int < 8 %} what{% endif %}"
    path = flow_kit.write_spec(story.specs / "suspect.yaml", {**story.spec, "chat": {"template": wrong_below_8}})
    command = ["deployment", "run", "nightly/nightly", "-p", f"spec={path}", "-p", "baseline=stable"]
    flow_kit.run_prefect(deployed_env, *command)
    message = heard(story, "8 worse, 0 better")
    assert message.startswith("trial · 80% · suspect: 80% correct, ") and "one comparison alone would fail" in message
    assert "Worse: row 0, row 1, row 2, row 3, row 4, row 5, row 6, row 7." in message
    night = prefect_client.read_flow_run(UUID(re.findall(r"/flow-run/([0-9a-f-]{36})", message)[-1]))
    assert (night.state.name, night.state.type) == ("Suspect", StateType.CRASHED), "which Prefect draws in orange"
    story.told.clear()


def make_slow(story: Story, count: int) -> dict[str, Any]:
    """Return a spec that asks one request after another, an eighth of a second each."""
    rows = flow_kit.write_rows(story.specs.parent / f"slow-{count}.jsonl", count)
    source = {"kind": "file", "path": str(rows)}
    return {
        **story.spec,
        "prompts": {**story.spec["prompts"], "source": source},
        "sampling": {"max_tokens": 1_500},
        "engine": {"backend": "fake", "max_concurrency": 1},
    }


def test_a_night_whose_process_is_killed_is_crashed_and_the_next_is_green(story, worker, prefect_client):
    slow = {**make_slow(story, flow_kit.SLOW_ROWS), "gate": {"min_overlap": 0.5}}
    stored = len(story.told)
    story.killed = story.begin(prefect_client, slow)
    before = flow_kit.count_in_parts(story.data_dir)
    flow_kit.wait_for(lambda: flow_kit.count_in_parts(story.data_dir) > before, "the first answers")
    run_dir = story.newest_run()
    flow_kit.wait_for(lambda: state_of(story, run_dir.name) == "running", "the run is in the database")
    process = re.fullmatch(r"process (\d+) on .*", name_holder(run_dir))
    assert process is not None
    os.kill(int(process[1]), signal.SIGKILL)
    ended = end_of(prefect_client, story.killed)
    assert ended.state is not None and ended.state.type == StateType.CRASHED, ended.state
    message = heard(story, "status code -9")
    assert re.match(r"trial against stable · \w+: Flow run ", message)
    after = end_of(prefect_client, story.begin(prefect_client, story.spec))
    assert after.state is not None and after.state.is_completed(), worker.read_text()
    assert after.state.name == "Inconclusive", "40 prompts cannot show a drop as small as the limit"
    words = r"100% correct, [\d,.]+ tokens/s\. Run \S+ fails no limit against \S+\. Inconclusive: accuracy, .*"
    assert re.fullmatch(words, str(after.state.message))
    assert story.newest_run() != run_dir, "a night is a measurement of its own"
    story.killed_run = run_dir.name
    state, said = flow_kit.query(story.data_dir, "select (state, message) from runs where run_id = ?", run_dir.name)[0]
    assert state == "interrupted" and f"assayline evaluate --resume {run_dir.name}" in said
    assert len(story.told) == stored + 1, "both Prefect's runner and its worker report the crash"


def state_of(story: Story, run_id: str) -> str | None:
    """A run's state in the database, which the night has open now and then."""
    with suppress(duckdb.Error):
        for state in flow_kit.query(story.data_dir, "select state from runs where run_id = ?", run_id):
            return str(state)
    return None


@pytest.mark.parametrize("is_real", [False, pytest.param(True, marks=[pytest.mark.vllm, pytest.mark.rare])])
def test_cancelled_run_stops_soon_and_keeps_what_had_finished(
    is_real, story, worker, prefect_client, deployed_data, tiny_model
):
    """Prefect's worker sends SIGTERM. The lines of a real engine are where they are looked for."""
    deployment = prefect_client.read_deployment_by_name("evaluate/evaluate")
    before = flow_kit.count_in_parts(deployed_data)
    spec = flow_kit.endless_spec(tiny_model) if is_real else {**make_slow(story, 2_000), "name": "endless"}
    flow_run = prefect_client.create_flow_run_from_deployment(deployment.id, parameters={"spec": spec})
    flow_kit.wait_for(lambda: flow_kit.count_in_parts(deployed_data) > before, "the first answers")
    assert len(flow_kit.hosts_of(deployed_data)) == is_real

    prefect_client.set_flow_run_state(flow_run.id, Cancelling())
    flow_kit.wait_for(lambda: not flow_kit.hosts_of(deployed_data), "the engine host is gone")
    flow_kit.wait_for(
        lambda: prefect_client.read_flow_run(flow_run.id).state_type == StateType.CANCELLED,
        "the run's state is Cancelled",
    )
    flow_kit.wait_for(
        lambda: flow_kit.query(deployed_data, "select state from runs where name = 'endless'") == ["cancelled"],
        "the run is cancelled in the database",
    )
    (run_id,) = flow_kit.query(deployed_data, "select run_id from runs where name = 'endless'")
    message = flow_kit.query(deployed_data, "select message from runs where run_id = ?", run_id)
    assert message == ["Stopped before its end by SIGTERM, for example a cancellation in Prefect."]
    (stored,) = flow_kit.query(deployed_data, "select count(*) from completions where run_id = ?", run_id)
    assert stored == flow_kit.count_in_parts(deployed_data) - before > 0

    logs = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[flow_run.id]))
    shown = r"vLLM: .*model" if is_real else r"Run .* started"
    flow_kit.wait_for(
        lambda: any(re.match(shown, log.message) for log in prefect_client.read_logs(log_filter=logs, limit=200)),
        f"{shown} is in the run's log",
    )
    shown_by_worker = worker.read_text()
    assert "nanobind" not in shown_by_worker
    assert "- vLLM: " not in shown_by_worker


def test_a_retried_night_resumes_the_run_that_it_began(story, worker, prefect_client):
    """As Retry in the UI does, of the night that was killed; its parameter `resume` is never."""
    killed = story.killed
    assert killed is not None
    runs = "select run_id from runs order by all"
    before = flow_kit.query(story.data_dir, runs)
    prefect_client.set_flow_run_state(killed, AwaitingRetry(), force=True)
    flow_kit.wait_for(lambda: not prefect_client.read_flow_run(killed).state.is_scheduled(), "the night goes on")
    ended = end_of(prefect_client, killed)
    assert ended.state is not None and ended.state.is_completed(), worker.read_text()
    assert flow_kit.query(story.data_dir, runs) == before, "no other run has begun"
    answered = "select count(*), count(distinct request_id) from completions where run_id = ?"
    assert flow_kit.query(story.data_dir, answered, story.killed_run) == [(flow_kit.SLOW_ROWS, flow_kit.SLOW_ROWS)]
