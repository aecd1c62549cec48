"""The nights of a week as their operator meets them: missing, green, worse, killed, beside an open shell, waiting.

Deployed runs of `nightly/nightly` on a real server, by a real worker; a webhook that listens; Chromium. The tests are
the days of one story, in order, on one data folder.
"""

import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import browser_kit
import duckdb
import flow_kit
import httpx
import pytest
import yaml
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    FlowRunFilter,
    FlowRunFilterParentFlowRunId,
    LogFilter,
    LogFilterFlowRunId,
)
from prefect.client.schemas.objects import Artifact, FlowRun, StateType
from record_kit import read_line, start_python
from run_kit import complete

from assayline.comparison.baselines import pin_baseline
from assayline.runs.locks import name_holder
from assayline.settings import Settings
from assayline.spec.file import parse_spec
from assayline.store.database import connect
from assayline.store.thread import find_stand_in

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
    seconds: dict[str, float] = field(default_factory=dict)
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

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        started_s = time.monotonic()
        yield
        self.seconds[step] = time.monotonic() - started_s


def end_of(client: Any, night: UUID) -> FlowRun:
    """The flow run when it has ended."""

    def look() -> FlowRun | None:
        run: FlowRun = client.read_flow_run(night)
        return run if run.state is not None and run.state.is_final() else None

    ended = flow_kit.wait_for(look, NIGHT_LIMIT_S, "the night ends")
    assert ended is not None
    return ended


def page_of(client: Any, night: UUID) -> Artifact:
    """The one artifact of a night."""
    wanted = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[night]))
    (page,) = client.read_artifacts(artifact_filter=wanted)
    assert isinstance(page, Artifact) and page.key == "night-trial"
    return page


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
    """A pinned run, a webhook that listens and the automations of a night; at the end, the seconds of each day."""
    started_s = time.monotonic()
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
        story.seconds["before the first night"] = time.monotonic() - started_s
        try:
            yield story
        finally:
            delete_automations(prefect_api)
            print("\n" + "\n".join(f"{seconds:6.1f} s  {step}" for step, seconds in story.seconds.items()))


def heard(story: Story, words: str) -> str:
    """The first message with these words, a regular expression."""
    deadline = time.monotonic() + 60
    while not (found := [message for message in story.told if re.search(words, message)]):
        assert time.monotonic() < deadline, f"The webhook did not hear {words!r} but {story.told}"
        time.sleep(0.1)
    return found[0]


def test_a_night_that_nobody_starts_is_told_of(
    story: Story, deployed_env: dict[str, str], prefect_client: Any, prefect_api: str, tmp_path: Path
) -> None:
    """It comes first, as there is no worker yet."""
    with story.timed("4 missing"):
        create_automations(deployed_env, tmp_path, {MISSING: MISSING_S})
        night = story.begin(prefect_client, story.spec)
        message = heard(story, "has not ended")
        assert prefect_client.read_flow_run(night).state_name == "Late"
    delete_automations(prefect_api, MISSING)
    name = prefect_client.read_flow_run(night).name
    assert message == f"{name} has not ended 3.5 hours after it was due: it is Late."
    prefect_client.delete_flow_run(night)
    story.told.clear()


def test_a_night_within_its_limits_is_completed_and_nobody_is_told(
    story: Story, worker: Path, prefect_client: Any
) -> None:
    with story.timed("1 green"):
        night = story.begin(prefect_client, story.spec)
        ended = end_of(prefect_client, night)
    assert ended.state is not None and ended.state.is_completed(), worker.read_text()
    words = r"100\s?%\scorrect, [\d,.]+\stokens/s; within its limits against \S+"
    assert re.fullmatch(words, str(ended.state.message))
    page = page_of(prefect_client, night)
    assert page.description == ended.state.message
    assert "**Within the limits of the baseline. 3 limits could not be judged.**" in page.data
    assert "**Limits**" in page.data and "](data:image/" in page.data
    assert story.told == []


def test_a_night_with_wrong_answers_is_worse_and_its_page_and_its_message_say_why(
    story: Story, worker: Path, prefect_client: Any
) -> None:
    wrong = {**story.spec, "chat": {"template": "{{ messages[0].content }} what"}}
    with story.timed("2 worse"):
        night = story.begin(prefect_client, wrong)
        ended = end_of(prefect_client, night)
        message = heard(story, "trial against stable")
    assert ended.state is not None and (ended.state.name, ended.state.type) == ("Worse", StateType.FAILED)
    sentence = "exact_match went from 1.0000 to 0.0000 over 40 prompts"
    assert sentence in str(ended.state.message) and sentence in message
    assert len(story.told) == 1
    data = page_of(prefect_client, night).data.replace("\\", "")
    title, state, verdict, *_ = data.split("\n\n")
    assert title == "# trial" and state.startswith("worse · ")
    assert verdict.startswith("**Worse than the baseline: the limit on accuracy, exact_match is broken.")
    flipped = "### Became worse: prompt"
    assert data.index("**Limits**") < data.index(flipped) < data.index("## The nights so far")
    assert "- This run's output: `what`" in data


@pytest.mark.skipif(browser_kit.BROWSER is None, reason="no chromium here to open the night's page with")
def test_the_page_of_a_worse_night_opens_in_a_browser(
    story: Story, prefect_client: Any, prefect_api: str, tmp_path: Path
) -> None:
    worse = [run for run in prefect_client.read_flow_runs() if run.state_name == "Worse" and run.deployment_id]
    page_id = page_of(prefect_client, worse[0].id).id
    picture = tmp_path / "worse.png"
    with story.timed("2 worse, in Chromium"), browser_kit.opened(tmp_path / "profile") as page:
        page.open(f"{prefect_api.removesuffix('/api')}/artifacts/artifact/{page_id}")
        page.wait_for(f"{browser_kit.TEXT}.includes('the limit on accuracy, exact_match is broken.')")
        shown = page.ask(browser_kit.TEXT)
        assert "Became worse: prompt" in shown and "This run's output: what" in shown
        assert page.ask("[...document.querySelectorAll('img')].some(e => e.src.startsWith('data:image/'))")
        assert page.wait_for("[...document.querySelectorAll('img')].some(e => e.complete && e.naturalWidth > 100)")
        page.picture(picture, 1400, 1600)
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 20_000


def test_a_night_whose_process_is_killed_is_crashed_and_the_next_is_green(
    story: Story, worker: Path, prefect_client: Any
) -> None:
    rows = flow_kit.write_rows(story.specs.parent / "slow.jsonl", flow_kit.SLOW_ROWS)
    slow = {
        **story.spec,
        "prompts": {**story.spec["prompts"], "source": {"kind": "file", "path": str(rows)}},
        "sampling": {"max_tokens": 1_500},
        "engine": {"backend": "fake", "max_concurrency": 1},
    }
    stored = len(story.told)
    with story.timed("3 killed"):
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
    with story.timed("3 the next night"):
        after = end_of(prefect_client, story.begin(prefect_client, story.spec))
    assert after.state is not None and after.state.is_completed(), worker.read_text()
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


def test_a_night_beside_an_open_shell_completes_and_the_next_command_merges_its_copy(
    story: Story, worker: Path, prefect_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = find_stand_in(story.data_dir / "assayline.duckdb")
    with story.timed("6 shell open"):
        with flow_kit.database_held(story.data_dir, read_only=True) as (shell, _):
            ended = end_of(prefect_client, story.begin(prefect_client, story.spec))
            run_id = story.newest_run().name
            assert stand_in.exists()
            assert flow_kit.query(story.data_dir, "select count(*) from runs where run_id = ?", run_id) == [0]
        assert ended.state is not None and ended.state.is_completed(), worker.read_text()
        assert "within its limits against" in str(ended.state.message)
        log = read_log(prefect_client, ended.id)
        assert any(f"is held by process {shell} " in line for line in log), log
        monkeypatch.setenv("ASSAYLINE_DATA_DIR", str(story.data_dir))
        judged = flow_kit.run_here("gate", run_id, "--baseline", "stable", "--dry-run")
        assert judged.code == 0, judged.err
    assert not stand_in.exists()
    assert flow_kit.query(story.data_dir, "select state from runs where run_id = ?", run_id) == ["completed"]
    verdict = "select (verdict, flow_run_id) from gate_verdict where run_id = ?"
    assert flow_kit.query(story.data_dir, verdict, run_id) == [("held", str(ended.id))]


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
    with story.timed("3 the killed night's evaluation"):
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
    with story.timed("5 device taken"):
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
