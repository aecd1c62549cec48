"""`assayline delete`: what goes with what, what is kept, and that the same command completes one that was killed."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import flow_kit
import pytest
import run_kit
from run_kit import FAKE, ROOT, complete, settings_in

from assayline import api
from assayline.comparison.baselines import pin_baseline
from assayline.run.driver import FrontEnd, evaluate
from assayline.settings import Settings
from assayline.spec.evaluation import EvalSpec
from assayline.store.manifest import Purpose
from assayline.store.thread import DatabaseThread

Made = dict[str, str]
KILLED = """
import os, pathlib, shutil, sys
from assayline.run.delete import delete, plan_deletions
from assayline.settings import Settings
owner, name = (pathlib.Path, "rename") if sys.argv[1] == "rename" else (shutil, "rmtree")
do, last = getattr(owner, name), sys.argv[3] if sys.argv[1] == "last" else ""
setattr(owner, name, lambda *given, **how: do(*given, **how) if last not in str(given[0]) else os._exit(9))
settings = Settings(data_dir=pathlib.Path(sys.argv[2]))
delete(settings, plan_deletions(settings, [sys.argv[3]]))
"""


@pytest.fixture(scope="module")
def made(make_spec: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Made]:
    """A data folder with a judged run, a pinned one, one whose answers another reads, and a benchmark of two."""
    settings = settings_in(tmp_path_factory.mktemp("delete"))
    few = {"engine": FAKE, "prompts": {"limit": 4}, "sampling": {"max_tokens": 2}}
    plain = {name: complete(make_spec(**few, name=name), settings).run_id for name in ("pinned", "judged", "read")}
    for name, asked, kind in (("judge", "judged", "judge"), ("reader", "read", "evaluate")):
        prompts = {"source": {"kind": "run", "run": plain[asked]}, "template": "{{ answer }}"}
        spec = EvalSpec.model_validate({"name": name, "model": make_spec().model, "engine": FAKE, "prompts": prompts})
        plain[name] = evaluate(spec, FrontEnd(settings), Purpose(kind=kind)).run_id
    found = api.benchmark(
        make_spec(**few, name="swept"), repeats=1, sweep={"sampling.max_tokens": [1, 2]}, settings=settings
    )
    plain["benchmark"] = found.benchmark_id
    DatabaseThread(settings).run(lambda opened: pin_baseline(opened, settings.data_dir, "stable", plain["pinned"]))
    return settings.data_dir, plain


@pytest.fixture
def runs(made: tuple[Path, Made], settings: Settings) -> Made:
    folder, runs = made
    shutil.copytree(folder, settings.data_dir)
    return runs


def list_stored(settings: Settings) -> set[str]:
    return {run_id for (run_id,) in run_kit.query(settings, "select run_id from runs")}


def test_a_run_goes_with_its_judges_and_a_benchmark_with_its_runs(runs, settings):
    before = list_stored(settings)
    shown = flow_kit.run_here("delete", runs["judged"], runs["benchmark"])
    assert shown.code == 0 and "Nothing is deleted yet" in shown.out and list_stored(settings) == before
    assert f"benchmark {runs['benchmark']}" in shown.out and "2 runs" in shown.out
    shown = flow_kit.run_here("delete", runs["judged"], runs["benchmark"], "--yes")
    assert shown.out.splitlines()[-1].startswith("Deleted 4 runs")
    left = {runs[name] for name in ("pinned", "read", "reader")}
    assert list_stored(settings) == left == {path.name for path in (settings.data_dir / "runs").iterdir()}
    assert not list((settings.data_dir / "benchmarks").iterdir())
    for table in ("completions", "scores", "scorers", "metric_values", "loaded_parts"):
        assert {one for (one,) in run_kit.query(settings, f"select distinct run_id from {table}")} <= left


@pytest.mark.parametrize(
    ("name", "why"),
    [("pinned", "is the baseline stable"), ("read", "reads its answers"), ("judge", "is deleted with it")],
)
def test_runs_that_others_need_are_kept(runs, settings, name, why):
    shown = flow_kit.run_here("delete", runs[name], "--yes")
    assert shown.code == 2 and why in shown.err and runs[name] in list_stored(settings)


def test_all_that_is_older_goes_but_what_is_kept(runs, settings):
    assert "Nothing to delete." in flow_kit.run_here("delete", "--older-than", "1d", "--yes").out
    shown = flow_kit.run_here("delete", "--older-than", "0h", "--yes")
    assert "is the baseline stable" in shown.out and "Deleted 6 runs" in shown.out, shown.out
    assert list_stored(settings) == {runs["pinned"]}


@pytest.mark.parametrize("event", ["rename", "rmtree", "last"])
def test_the_same_command_completes_one_that_was_killed(runs, settings, event):
    command = [sys.executable, "-c", KILLED, event, str(settings.data_dir), runs["judged"]]
    assert subprocess.run(command, check=False, cwd=ROOT).returncode == 9
    assert runs["judged"] not in list_stored(settings), "rows go first"
    assert flow_kit.run_here("delete", runs["judged"], "--yes").code == 0
    assert not {runs["judged"], runs["judge"]} & {path.name for path in settings.data_dir.glob("runs/*")}
    assert not list(settings.data_dir.glob(".deleted-*"))


def test_a_run_without_a_folder_is_named_and_can_be_deleted(runs, settings):
    shutil.rmtree(settings.run_dir(runs["read"]))
    assert f"Run {runs['read']} has rows and no folder" in flow_kit.run_here("db rebuild", runs["pinned"]).out
    assert flow_kit.run_here("delete", runs["reader"], "--yes").code == 0
    assert flow_kit.run_here("delete", runs["read"], "--yes").code == 0
    assert runs["read"] not in list_stored(settings)
