"""The report at the end of a run: written, shown on its page, and never a reason to fail."""

from pathlib import Path
from typing import Any

import flow_kit
import pytest
from test_evaluate_flow import artifacts_of, run, wait_for_log

pytestmark = [pytest.mark.prefect, pytest.mark.usefixtures("kept_charts")]


def folder_of(data_dir: Path) -> Path:
    (folder,) = (data_dir / "runs").iterdir()
    return folder


def test_a_run_ends_with_its_report_on_disk_and_on_its_page(
    prefect_client: Any, fake_spec: dict[str, Any], data_dir: Path
) -> None:
    state = run(fake_spec)
    result = state.result()
    page = folder_of(data_dir) / "report.html"
    assert result["report"] == str(page)
    assert "<h1>trial</h1>" in page.read_text(encoding="utf-8")
    shown = artifacts_of(prefect_client, state)["report-trial"]
    assert "The run is complete: 40 of 40 requests answered." in shown.data
    wait_for_log(prefect_client, state, f"Report: {page}")


def test_a_report_that_cannot_be_written_is_a_warning(
    prefect_client: Any, fake_spec: dict[str, Any], data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("assayline.report.make.replace_file", refuse)
    state = run(fake_spec)
    assert state.is_completed()
    assert state.result()["report"] is None
    shown = artifacts_of(prefect_client, state)
    assert set(shown) == {"progress", "report-trial"}
    assert shown["report-trial"].data.startswith("| metric | value |"), "the page has the metrics at least"
    wait_for_log(prefect_client, state, "The report was not written")
    assert flow_kit.query(data_dir, "select state from runs") == ["completed"]


def test_a_failed_run_has_a_report_that_says_so(prefect_client: Any, fake_spec: dict[str, Any], data_dir: Path) -> None:
    fake_spec["prompts"]["source"] = {"kind": "inline", "rows": [{"question": "What is 1 + 1?", "answer": "2"}, {}, {}]}
    state = run(fake_spec)
    assert state.is_failed()
    text = (folder_of(data_dir) / "report.md").read_text(encoding="utf-8")
    assert "The run failed" in text
    assert "template" in text.split("## Errors")[1]


def test_a_baseline_of_the_spec_is_in_the_report_and_one_that_is_not_there_is_said(
    prefect_client: Any, fake_spec: dict[str, Any], data_dir: Path
) -> None:
    first = run(fake_spec).result()["run_id"]
    compared = run({**fake_spec, "gate": {"baseline": first}})
    assert "Against the baseline" in artifacts_of(prefect_client, compared)["report-trial"].data
    state = run({**fake_spec, "name": "other", "gate": {"baseline": "no-such-baseline"}})
    assert state.is_completed()
    assert "Against the baseline" not in artifacts_of(prefect_client, state)["report-other"].data
    wait_for_log(prefect_client, state, "The report is without its baseline")
