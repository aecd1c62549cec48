"""Pinned baselines: a command, its sentences, and what survives a rebuild."""

import getpass
import subprocess
import sys
from datetime import datetime

import pytest
from row_kit import NightOf, given_nights

from assayline.comparison.baselines import Pin, list_pins, resolve_baseline, restore_pins
from assayline.errors import SpecError
from assayline.flows.cli import run
from assayline.settings import Settings
from assayline.store.database import connect
from assayline.store.thread import DatabaseThread

FIRST, SECOND = "20260101-000000-sums-aaaa", "20260102-000000-sums-bbbb"


@pytest.fixture(autouse=True)
def runs(settings: Settings) -> None:
    add_run(settings, "20260101-000000-sums-aaaa")
    add_run(settings, "20260102-000000-sums-bbbb")
    add_run(settings, "20260103-000000-sums-cccc", "failed")


def add_run(settings: Settings, run_id: str, state: str = "completed") -> None:
    with connect(settings.database_path, 10) as connection:
        connection.execute(
            "insert into runs (run_id, name, prompt_set, model, spec_hash, spec_json, assayline_version, host_name, "
            "attempt, state, started_at) values (?, 'n', 'p', 'm', 'h', '{}', '0', 'h', 1, ?, ?)",
            [run_id, state, datetime(2026, 1, 1)],
        )


KILLED = """
import os, sys
from assayline.comparison import baselines
from assayline.flows.cli import run
from assayline.files import replace_file
from assayline.store import decisions

def end(path, text, room):
    if sys.argv[1] == "after":
        replace_file(path, lambda file: file.write(text.encode()))
    os._exit(9)

decisions.write_text = end
run("baseline", sys.argv[2:])
"""
"""Runs a command and ends without a farewell before or after it has written a folder."""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("command", [["pin", "good", SECOND], ["unpin", "good"]], ids=["move", "unpin"])
def test_pins_in_database_and_folders_agree_after_a_kill(settings, command, when):
    for run_id in (FIRST, SECOND):
        (settings.run_dir(run_id)).mkdir(parents=True)
        (settings.run_dir(run_id) / "run.json").write_text("{}")
    assert run("baseline", ["pin", "good", FIRST]) == 0
    done = subprocess.run([sys.executable, "-c", KILLED, when, *command], check=False)
    assert done.returncode == 9
    DatabaseThread(settings).run(lambda connection: None)  # as any command opens the database
    pins = [pin.run_id for pin in read_pins(settings)]
    assert pins == ([SECOND] if command[0] == "pin" else [] if when == "after" else [FIRST])
    with connect(settings.database_path, 10) as connection:
        connection.execute("delete from baselines")
        restore_pins(connection, settings.data_dir)
        assert [pin.run_id for pin in list_pins(connection)] == pins


def test_restore_pins_brings_no_earlier_run_back_after_an_unpin(settings):
    for run_id in (FIRST, SECOND):
        (settings.run_dir(run_id)).mkdir(parents=True)
        (settings.run_dir(run_id) / "run.json").write_text("{}")
        assert run("baseline", ["pin", "good", run_id]) == 0
    assert run("baseline", ["unpin", "good"]) == 0
    with connect(settings.database_path, 10) as connection:
        assert restore_pins(connection, settings.data_dir) == ([], [])


def read_pins(settings: Settings) -> list[Pin]:
    with connect(settings.database_path, 10) as connection:
        return list_pins(connection)


def test_a_name_is_pinned_listed_moved_and_taken_away(settings, capsys):
    assert run("list baselines", []) == 0
    assert "No run is pinned" in capsys.readouterr().out
    assert run("baseline", ["pin", "good", "20260101-000000-sums-aaaa", "--note", "before the [new] driver"]) == 0
    (pin,) = read_pins(settings)
    assert (pin.baseline, pin.run_id, pin.note) == ("good", "20260101-000000-sums-aaaa", "before the [new] driver")
    capsys.readouterr()
    assert run("list baselines", []) == 0
    listed = capsys.readouterr().out
    assert "20260101-000000-sums-aaaa" in listed and "[new]" in listed
    assert run("baseline", ["pin", "good", "20260102-000000-sums-bbbb"]) == 0
    assert "(was run 20260101-000000-sums-aaaa)" in capsys.readouterr().out
    assert [pin.run_id for pin in read_pins(settings)] == ["20260102-000000-sums-bbbb"]
    assert run("baseline", ["unpin", "good"]) == 0
    assert read_pins(settings) == []


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["pin", "a b", "20260101-000000-sums-aaaa"], 2, "'a b' is not a valid baseline name"),
        (["pin", "", "20260101-000000-sums-aaaa"], 2, "is not a valid baseline name"),
        (["pin", "20260101-000000-sums-aaaa", "20260101-000000-sums-aaaa"], 2, "is the id of a run"),
        (["pin", "good", "20260101-000000-sums-aaab"], 2, "nearest: 20260101-000000-sums-aaaa"),
        (["pin", "good", "20260103-000000-sums-cccc"], 8, "is failed, not completed"),
        (["unpin", "good"], 2, "There is no baseline 'good'. hint: pinned baselines: none yet."),
    ],
)
def test_pin_rejects_a_run_that_cannot_be_pinned(arguments, code, sentence, settings, capsys):
    assert run("baseline", arguments) == code
    told = capsys.readouterr().err
    assert sentence in told and "Traceback" not in told
    assert read_pins(settings) == []


def test_list_baselines_prints_who_pinned_and_unpinned_a_name(settings, capsys):
    for run_id in (FIRST, SECOND):
        (settings.run_dir(run_id)).mkdir(parents=True)
        (settings.run_dir(run_id) / "run.json").write_text("{}")
        assert run("baseline", ["pin", "good", run_id, "--note", "why"]) == 0
    assert run("list baselines", []) == 0
    assert capsys.readouterr().out.splitlines()[-2].split("│")[-3].strip() == getpass.getuser()
    assert run("baseline", ["unpin", "good"]) == 0
    capsys.readouterr()
    assert run("list baselines", ["good"]) == 0
    rows = [line.split("│")[1:5] for line in capsys.readouterr().out.splitlines() if "-sums-" in line]
    told = [(cells[0].strip(), cells[1].strip(), cells[3].strip()) for cells in rows]
    user = getpass.getuser()
    assert told == [(SECOND, "unpin", user), (SECOND, "pin", user), (FIRST, "pin", user)]
    assert run("list baselines", ["godo"]) == 2


def test_pin_with_force_accepts_an_unfinished_run(settings):
    assert run("baseline", ["pin", "good", "20260103-000000-sums-cccc", "--force"]) == 0
    assert [pin.run_id for pin in read_pins(settings)] == ["20260103-000000-sums-cccc"]


def test_a_baseline_is_found_by_name_or_by_run(settings):
    run("baseline", ["pin", "good", "20260101-000000-sums-aaaa"])
    with connect(settings.database_path, 10) as connection:
        assert resolve_baseline(connection, "good") == "20260101-000000-sums-aaaa"
        assert resolve_baseline(connection, "20260102-000000-sums-bbbb") == "20260102-000000-sums-bbbb"
        assert resolve_baseline(connection, "20260102") == "20260102-000000-sums-bbbb"
        with pytest.raises(SpecError, match="Run id '2026' is ambiguous: 3 runs begin with it"):
            resolve_baseline(connection, "2026")
        with pytest.raises(SpecError, match=r"no baseline 'goood'.*did you mean 'good'\?"):
            resolve_baseline(connection, "goood")
        connection.execute("delete from runs where run_id = '20260101-000000-sums-aaaa'")
        with pytest.raises(SpecError, match=r"assayline db rebuild 20260101-000000-sums-aaaa"):
            resolve_baseline(connection, "good")


@pytest.mark.parametrize(
    ("night", "nights", "warning"),
    [
        (NightOf(), 1, "it has 1. Equal runs that follow are its repeats"),
        (NightOf(), 5, None),
        (NightOf(benchmark_id="b"), 3, "it has 3. Later runs add none"),
        (NightOf(attempt=2), 6, "Speed cannot be judged against it: it was resumed."),
    ],
)
def test_pin_warns_of_a_run_against_which_speed_cannot_be_judged(night, nights, warning, settings, capsys):
    *_, last = given_nights(settings, [night] * nights)
    assert run("baseline", ["pin", "good", last]) == 0
    told = capsys.readouterr().out
    assert (warning in told and "--remeasure" in told) if warning else "warning" not in told


@pytest.mark.parametrize(("right", "is_named"), [((30, 36, 32, 31, 33), True), ((30, 32, 31, 33, 36), False)])
def test_pin_warns_of_the_best_of_equal_runs_unless_its_repeats_are_averaged(right, is_named, settings, capsys):
    """The newest is averaged with all before it, so that nothing was selected."""
    run_ids = given_nights(settings, [NightOf(right=each) for each in right])
    assert run("baseline", ["pin", "good", run_ids[right.index(36)]]) == 0
    told = capsys.readouterr().out
    assert ("highest accuracy of 5 equal runs" in told and f"the newest of them, {run_ids[-1]}" in told) == is_named
