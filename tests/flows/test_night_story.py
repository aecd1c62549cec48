"""Nights as their operator meets them: missing, killed, green, waiting for a device.

Deployed runs of `nightly/nightly` on a real server, by a real worker; a webhook that listens. The tests are the days of
one story, in order, on one data folder. Nights that are worse are in test_gate_flow.py.
"""

import os
import re
import shutil
import signal
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
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterParentFlowRunId,
    LogFilter,
    LogFilterFlowRunId,
)
from prefect.client.schemas.objects import FlowRun, StateType
from run_kit import complete, read_line, start_python

from assayline.comparison.baselines import pin_baseline
from assayline.runs.locks import name_holder
from assayline.settings import Settings
from assayline.spec.file import parse_spec
from assayline.store.database import connect

pytestmark = pytest.mark.prefect

NOTIFY = flow_kit.ROOT / "deploy" / "notify.yaml"
FAILED, DIED, MISSING = "assayline: a night failed", "assayline: a run died", "assayline: a night has not ended"
HEARTBEAT_S = 30
"""The shortest that Prefect takes."""
DIED_S, MISSING_S = 35, 10
NIGHT_LIMIT_S = 120
HOLD_DEVICE = """
import sys
from pathlib import Path
from assayline.engines.devices.claims import claim_device, list_devices
with claim_device(list_devices("cpu", 1), Path(sys.argv[1]), 0, "run 20261125-013000-training-0001 (training)"):
    print("held", flush=True)
    sys.stdin.readline()
"""


@dataclass
class Story:
    """What the nights have in common."""

    data_dir: Path
    specs: Path
    spec: dict[str, Any]
    """Right answers; a run of it is pinned as `stable`."""
    told: list[str]
    """What the webhook was sent."""
    killed: UUID | None = None
    """The flow run of the night that was killed."""

    def begin(self, client: Any, spec: dict[str, Any]) -> UUID:
        """Starts a night by its deployment, as the schedule does."""
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

    ended = flow_kit.wait_for(look, NIGHT_LIMIT_S, "the night ends")
    assert ended is not None
    return ended


def create_automations(env: dict[str, str], folder: Path, within_s: dict[str, int | None]) -> None:
    """Those of deploy/notify.yaml with these names, with limits that a test can wait for, or their own (None)."""
    known = yaml.safe_load(NOTIFY.read_text())["automations"]
    chosen = [one for one in known if one["name"] in within_s]
    for one in chosen:
        one["trigger"]["within"] = within_s[one["name"]] or one["trigger"]["within"]
    path = folder / "notify.yaml"
    path.write_text(yaml.safe_dump({"automations": chosen}))
    created = flow_kit.run_command([sys.executable, "scripts/notify.py", "webhook/nights", "--file", str(path)], env)
    assert created.code == 0, created.out + created.err


def delete_automations(api: str, names: str = "assayline: ") -> None:
    """Those whose names begin so: a limit of seconds would fire in other tests."""
    for one in httpx.post(f"{api}/automations/filter", json={}).json():
        if one["name"].startswith(names):
            httpx.delete(f"{api}/automations/{one['id']}")


def create_block(api: str, url: str) -> None:
    """A webhook that the automations send by."""
    from prefect import settings
    from prefect.blocks.webhook import Webhook

    with settings.temporary_settings({settings.PREFECT_API_URL: api}):
        Webhook(method="POST", url=url, allow_private_urls=True).save("nights", overwrite=True)


@pytest.fixture(scope="module")
def deployed_env(deployed_env: dict[str, str]) -> dict[str, str]:
    return {
        **deployed_env,
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_S),
        "ASSAYLINE_DATABASE_WAIT_S": "1",
    }


@pytest.fixture(scope="module")
def story(
    deployments: None,
    prefect_api: str,
    deployed_env: dict[str, str],
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
    settings = Settings(data_dir=deployed_data, lock_dir=deployed_data.parent / "locks")
    stable = complete(parse_spec(spec), settings, "never").run_id
    with connect(settings.database_path, 20) as connection:
        pin_baseline(connection, deployed_data, "stable", stable)
    told: list[str] = []
    with flow_kit.listening(told) as url:
        create_block(prefect_api, url)
        create_automations(deployed_env, folder, {FAILED: None, DIED: DIED_S})
        story = Story(deployed_data, folder / "specs", spec, told)
        try:
            yield story
        finally:
            delete_automations(prefect_api)


def heard(story: Story, words: str) -> str:
    """The first message with these words, a regular expression."""
    return flow_kit.wait_for(
        lambda: [message for message in story.told if re.search(words, message)], 60, f"the webhook hears {words!r}"
    )[0]


def test_a_night_that_nobody_starts_is_told_of(
    story: Story, deployed_env: dict[str, str], prefect_client: Any, prefect_api: str, tmp_path: Path
) -> None:
    """It comes first, as there is no worker yet."""
    create_automations(deployed_env, tmp_path, {MISSING: MISSING_S})
    night = story.begin(prefect_client, story.spec)
    message = heard(story, "has not ended")
    assert prefect_client.read_flow_run(night).state_name == "Late"
    delete_automations(prefect_api, MISSING)
    name = prefect_client.read_flow_run(night).name
    assert message == f"{name} has not ended 3.5 hours after it was due: it is Late."
    prefect_client.delete_flow_run(night)
    story.told.clear()


def test_a_night_whose_process_is_killed_is_crashed_and_the_next_is_green(
    story: Story, worker: Path, prefect_client: Any
) -> None:
    rows = flow_kit.write_rows(story.specs.parent / "slow.jsonl", flow_kit.SLOW_ROWS)
    slow = {
        **story.spec,
        "prompts": {**story.spec["prompts"], "source": {"kind": "file", "path": str(rows)}},
        "sampling": {"max_tokens": 1_500},
        "engine": {"backend": "fake", "window": 1},
    }
    stored = len(story.told)
    story.killed = story.begin(prefect_client, slow)
    before = flow_kit.count_in_parts(story.data_dir)
    flow_kit.wait_for(lambda: flow_kit.count_in_parts(story.data_dir) > before, 60, "the first answers")
    run_dir = story.newest_run()
    flow_kit.wait_for(lambda: state_of(story, run_dir.name) == "running", 60, "the run is in the database")
    process = re.fullmatch(r"process (\d+) on .*", name_holder(run_dir))
    assert process is not None
    os.kill(int(process[1]), signal.SIGKILL)
    ended = end_of(prefect_client, story.killed)
    assert ended.state is not None and ended.state.type == StateType.CRASHED, ended.state
    message = heard(story, "status code -9")
    assert message.startswith("trial against stable: Flow run ")
    after = end_of(prefect_client, story.begin(prefect_client, story.spec))
    assert after.state is not None and after.state.is_completed(), worker.read_text()
    words = r"100\s?%\scorrect, [\d,.]+\stokens/s; within its limits against \S+"
    assert re.fullmatch(words, str(after.state.message))
    assert story.newest_run() != run_dir, "a night is a measurement of its own"
    state, said = flow_kit.query(story.data_dir, "select (state, message) from runs where run_id = ?", run_dir.name)[0]
    assert state == "interrupted" and f"assayline evaluate --resume {run_dir.name}" in said
    assert len(story.told) == stored + 1, "both Prefect's runner and its worker report the crash"


def state_of(story: Story, run_id: str) -> str | None:
    """A run's state in the database, which the night has open now and then."""
    with suppress(duckdb.Error):
        for state in flow_kit.query(story.data_dir, "select state from runs where run_id = ?", run_id):
            return str(state)
    return None


def evaluation_of(client: Any, night: UUID) -> list[FlowRun]:
    """The subflow of a night, once there is one."""
    wanted = FlowRunFilter(parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[night]))
    found: list[FlowRun] = client.read_flow_runs(flow_run_filter=wanted)
    return found


def read_log(client: Any, night: UUID) -> list[str]:
    """The lines of a night and of its evaluation."""
    flow_runs = [night, *(run.id for run in evaluation_of(client, night))]
    wanted = LogFilter(flow_run_id=LogFilterFlowRunId(any_=flow_runs))
    return [line.message for line in client.read_logs(log_filter=wanted, limit=200)]


def test_the_evaluation_of_the_killed_night_is_crashed_when_its_heartbeats_are_missed(
    story: Story, prefect_client: Any
) -> None:
    killed = story.killed
    assert killed is not None
    flow_kit.wait_for(
        lambda: evaluation_of(prefect_client, killed)[0].state_type == StateType.CRASHED,
        DIED_S + 30,
        "the evaluation is Crashed",
    )
    state = evaluation_of(prefect_client, killed)[0].state
    assert state is not None and state.message == "Its process died: no heartbeat for ten minutes."


@pytest.mark.vllm
@pytest.mark.rare
def test_a_night_waits_for_its_device_and_logs_who_has_it(
    story: Story, worker: Path, prefect_client: Any, tiny_model: Path
) -> None:
    spec = {
        **story.spec,
        "model": str(tiny_model),
        "engine": {"env": flow_kit.ONE_THREAD, "args": dict(flow_kit.SMALL_ENGINE)},
    }
    other = start_python(HOLD_DEVICE, story.data_dir.parent / "locks")
    try:
        assert read_line(other) == "held"
        night = story.begin(prefect_client, spec)
        words = (
            r"Every device is taken: cpu-\S+ by run 20261125-013000-training-0001 \(training\), "
            rf"process {other.pid}, since .* UTC\. Waiting for up to 21600 s"
        )
        flow_kit.wait_for(
            lambda: any(re.search(words, line) for line in read_log(prefect_client, night)),
            60,
            "the log names who has the device",
        )
        assert prefect_client.read_flow_run(night).state_type == StateType.RUNNING
    finally:
        other.kill()
        other.communicate()
    ended = end_of(prefect_client, night)
    assert ended.state is not None and ended.state.name in ("Completed", "Worse"), worker.read_text()
    assert flow_kit.query(story.data_dir, "select state from runs where run_id = ?", story.newest_run().name) == [
        "completed"
    ]
