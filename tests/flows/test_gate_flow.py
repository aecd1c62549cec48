"""The gate as a flow and as a command: states, exit codes, what the page shows; and evaluate → gate in one flow."""

import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import flow_kit
import pytest
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.client.schemas.objects import State

from assayline.errors import GateFailedError, SpecError
from assayline.settings import load_settings
from assayline.spec_file import parse_spec
from assayline.store.baselines import pin_baseline
from assayline.store.database import connect
from flows.evaluate import evaluate
from flows.gate import gate
from flows.nightly import nightly

pytestmark = [pytest.mark.prefect, pytest.mark.usefixtures("data_dir")]
WRONG = "{{ messages[0].content }} what"


def run(spec: dict[str, Any]) -> str:
    return str(evaluate(parse_spec(spec), "never")["run_id"])


def wrong(spec: dict[str, Any]) -> dict[str, Any]:
    """The same prompts, rendered so that the fake engine, which says the last word, is wrong."""
    return {**spec, "chat": {"template": WRONG}}


def pin(name: str, run_id: str) -> None:
    settings = load_settings()
    with connect(settings.database_path, 20) as connection:
        pin_baseline(connection, settings.data_dir, name, run_id)


def page_of(client: Any, state: State[Any]) -> str:
    wanted = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[state.state_details.flow_run_id]))
    return str({artifact.key: artifact.data for artifact in client.read_artifacts(artifact_filter=wanted)}["gate"])


def test_a_worse_run_fails_the_flow_and_an_equal_one_completes_it(
    prefect_client: Any, fake_spec: dict[str, Any]
) -> None:
    good, same, bad = run(fake_spec), run(fake_spec), run(wrong(fake_spec))
    pin("good", good)

    held = gate(same, "good", return_state=True)
    assert held.is_completed()
    assert [check["verdict"] for check in held.result()["checks"]] == ["held", "held", *["not judged"] * 3]
    assert "# Held" in page_of(prefect_client, held)
    assert prefect_client.read_flow_run(held.state_details.flow_run_id).name == f"gate of {same}"

    broken = gate(bad, "good", return_state=True)
    assert broken.is_failed()
    assert prefect_client.read_flow_run(broken.state_details.flow_run_id).state.is_failed()
    with pytest.raises(GateFailedError, match=r"exact_match went from 1\.0000 to 0\.0000 over 40 prompts"):
        broken.result()
    page = page_of(prefect_client, broken)
    assert "# Broken" in page and "40 worse" in page

    lenient = gate(bad, good, {"max_accuracy_drop": "1"}, return_state=True)
    assert lenient.is_completed()


def test_the_spec_names_its_baseline_and_limits(prefect_client: Any, fake_spec: dict[str, Any]) -> None:
    pin("good", run(fake_spec))
    limited = {**wrong(fake_spec), "gate": {"baseline": "good", "max_slowdown": {}}}
    assert gate(run(limited), return_state=True).is_failed()
    limited["gate"]["max_accuracy_drop"] = 1
    assert gate(run(limited), return_state=True).is_completed()


def test_a_night_is_evaluated_and_judged_in_one_flow(prefect_client: Any, fake_spec: dict[str, Any]) -> None:
    first = nightly(parse_spec(fake_spec), return_state=True)
    assert first.is_completed() and first.result()["gate"] is None, "nothing is pinned yet"
    pin("nights", first.result()["run_id"])

    second = nightly(parse_spec(fake_spec), "nights", return_state=True)
    assert second.is_completed()
    assert second.result()["run_id"] != first.result()["run_id"]
    assert prefect_client.read_flow_run(second.state_details.flow_run_id).name == "trial against nights"

    third = nightly(parse_spec(wrong(fake_spec)), "nights", return_state=True)
    assert third.is_failed()
    assert prefect_client.read_flow_run(third.state_details.flow_run_id).state.is_failed()
    with pytest.raises(SpecError, match="There is no baseline 'days'"):
        nightly(parse_spec(fake_spec), "days")


def test_command_exits_with_a_code_and_a_sentence(
    fake_spec: dict[str, Any], data_dir: Path, served_env: dict[str, str], prefect_client: Any
) -> None:
    good, bad = run(fake_spec), run(wrong(fake_spec))
    pin("good", good)

    def command(*arguments: str) -> flow_kit.Finished:
        return flow_kit.run_command([sys.executable, "-m", "flows.gate", *arguments], served_env)

    failed = command(bad, "--baseline", "good")
    assert failed.code == 1, failed.err
    assert "error: Run" in failed.err and "the limit is a drop of 0.01" in failed.err and "Traceback" not in failed.err
    assert "broken" in failed.out and "accuracy, exact_match" in failed.out
    held = command(bad, "--baseline", "good", "--max_accuracy_drop", "1")
    assert held.code == 0, held.err
    assert "held: exact_match went from 1.0000 to 0.0000" in held.out
    for arguments, code, sentence in (
        ([bad], 2, "has no baseline to be held against"),
        ([bad, "--baseline", "godo"], 2, "Did you mean 'good'?"),
        (["nobody", "--baseline", "good"], 2, "There is no run 'nobody'"),
        ([bad, "--baseline", "good", "--max_drop", "1"], 2, "gate.max_drop: unknown key"),
        ([bad, "--baseline", bad], 8, "is its own baseline"),
    ):
        refused = command(*arguments)
        assert (refused.code, sentence in refused.err) == (code, True), refused.err
        assert "Traceback" not in refused.err


def test_an_automation_tells_of_a_failed_night(
    prefect_client: Any, fake_spec: dict[str, Any], tmp_path: Path, served_env: dict[str, str]
) -> None:
    """docs/comparison.md, "Every night, and who is told", with a listener of our own."""
    from prefect.blocks.webhook import Webhook

    told: list[str] = []

    class Listener(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    listener = HTTPServer(("127.0.0.1", 0), Listener)
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{listener.server_port}/"
        block = Webhook(method="POST", url=url, allow_private_urls=True).save("told", overwrite=True)
        (recipe,) = re.findall(
            r"```yaml\n(automations:.*?)```", (flow_kit.ROOT / "docs/comparison.md").read_text(), re.S
        )
        file = tmp_path / "notify.yaml"
        file.write_text(recipe.replace("ID-OF-THE-BLOCK", str(block)))
        command = [sys.executable, "-m", "prefect", "automation", "create", "--from-file", str(file)]
        created = flow_kit.run_command(command, served_env)
        assert created.code == 0, created.out + created.err

        good = nightly(parse_spec(fake_spec), return_state=True)
        pin("nights", good.result()["run_id"])
        assert nightly(parse_spec(wrong(fake_spec)), "nights", return_state=True).is_failed()
        flow_kit.wait_for(lambda: told, 60, "the automation has called")
        assert len(told) == 1, "the good night is nobody's concern"
        assert "trial against nights" in told[0] and "from 1.0000 to 0.0000 over 40 prompts" in told[0]
    finally:
        listener.shutdown()
        listener.server_close()
