"""The page of a leaderboard: who wins, that nobody does, and what is shown and not compared."""

import logging
import re
from collections.abc import Sequence
from typing import Any

import pytest
from row_kit import NIGHT_PROMPTS, NightOf, given_nights, read_charts, read_page, text_of
from run_kit import settings_in

from assayline.errors import SpecError
from assayline.flows.cli import run
from assayline.flows.live import reporting
from assayline.report.board import BoardRows, read_board
from assayline.report.make import Written, make_report, open_database
from assayline.run.stages import write_leaderboard
from assayline.settings import Settings
from assayline.store.database import connect

pytestmark = pytest.mark.slow

LETTERS = "abcdefgh"


def models_of(rights: Sequence[int], **changes: Any) -> list[NightOf]:
    """Insert a run per model, called a, b, …, with that many right answers of NIGHT_PROMPTS."""
    return [
        NightOf(right=right, model=letter, model_id=f"digest of {letter}", **changes)
        for letter, right in zip(LETTERS, rights, strict=False)
    ]


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> tuple[Settings, BoardRows, Written]:
    """Two tasks: on one, a model wins; on the other two may, one was asked with other settings and one failed."""
    folder = tmp_path_factory.mktemp("board")
    settings = settings_in(folder)
    won = models_of([40, 20, 19], name="won")
    open_race = models_of([38, 37, 12], name="race", prompts="q")
    odd = NightOf(right=30, model="d", model_id="digest of d", name="race", prompts="q", temperature=0.7)
    failed = NightOf(right=40, model="e", model_id="digest of e", name="race", prompts="q", state="failed")
    given_nights(settings, [*won, *open_race, odd, failed])
    with connect(settings.database_path, 10) as connection:
        connection.execute("update runs set prompt_set = name")
    rows = open_database(settings).query(read_board)
    return settings, rows, make_report(settings, (), folder=folder, kind="leaderboard")


def test_a_winner_is_called_where_there_is_one_and_nowhere_else(board):
    _, rows, written = board
    text = read_page(written.html)
    assert "won: a beats every other model with 100%, ahead of b by +50.0 points" in text
    assert "race: no winner; any of 2 models may be the best: a, b." in text
    won, race = rows.tasks[1], rows.tasks[0]
    assert [(cell["model"], cell["best_rank"], cell["worst_rank"]) for cell in won.cells] == [
        ("a", 1, 1),
        ("b", 2, 3),
        ("c", 2, 3),
    ]
    assert [(cell["model"], cell["best_rank"]) for cell in race.cells] == [
        ("a", 1), ("b", 1), ("c", 3), ("e", None), ("d", None),
    ]  # fmt: skip
    assert len(rows.pairs) == 3 + 3
    assert "Tasks with a winner" in text and "1 of 2" in text


def test_board_report_marks_excluded_runs_with_the_reason(board):
    _, rows, written = board
    text = read_page(written.html)
    assert "2 scores are shown but not compared" in text
    assert "it was asked with other settings: sampling.temperature: 0.0 → 0.7" in text
    assert "it is failed, not completed" in text
    assert not any("d" in pair.sides for pair in rows.pairs)
    markdown = written.text.replace("\\", "").replace("\u00a0", " ")
    assert "| d | – | 75% (60 to 86%), not compared |" not in markdown, "of another task"
    (line,) = (line for line in markdown.splitlines() if line.startswith("| d |"))
    assert "not compared" in line and "75%" in line


def test_tasks_of_one_model_and_runs_without_scores_share_the_tables(settings, tmp_path):
    given_nights(settings, [*models_of([30, 20]), NightOf(model="c", model_id="c"), NightOf(model="d", model_id="d")])
    with connect(settings.database_path, 10) as connection:
        connection.execute("update runs set prompt_set = model where model in ('c', 'd')")
        connection.execute("delete from scorers where run_id = 'night-003'")
        connection.execute("delete from scores where run_id = 'night-003'")
    written = make_report(settings, (), folder=tmp_path, kind="leaderboard")
    text = read_page(written.html)
    assert [section.key for section in written.document.sections] == ["board", "task-3", "runs", "how"]
    assert "1 other task has no two models with scores to compare." in text and "shown but not compared" not in text
    assert "4 models, 2 tasks, 1 load with speed alone" in text
    markdown = written.text.replace("\\", "").replace("\u00a0", " ")
    (line,) = (line for line in markdown.splitlines() if line.startswith("| d |"))
    assert "ms" in line and "%" not in line, "speeds of d, and no score"
    assert all(run_id in markdown for run_id in ("night-000", "night-001", "night-002", "night-003"))


def test_charts_have_every_model_of_their_task(board):
    drawn = [{row["name"]: row for rows in layers for row in rows} for layers in read_charts(board[2].html)]
    assert [sorted(models) for models in drawn] == [["a", "b", "c", "d", "e"], ["a", "b", "c"]]
    assert drawn[0]["d"]["is_pale"] and drawn[0]["a"]["shown"].startswith("95% (")


def test_leaderboard_leaves_out_what_all_models_have_in_common(settings, tmp_path):
    given_nights(settings, models_of([32, 30]))
    with connect(settings.database_path, 10) as connection:
        connection.execute(
            """update runs set spec_json = json_merge_patch(spec_json, '{"engine": {"args": {"dtype": "half"}}}')"""
        )
    text = read_page(make_report(settings, (), folder=tmp_path, kind="leaderboard").html)
    assert text.count("dtype half") == 1 and "2 models, dtype half, 1 task" in text
    assert "per correct answer" not in text, "no run has a price"


def test_board_report_counts_other_prompts_names_the_pairing_and_needs_two_models(settings, tmp_path):
    given_nights(settings, [*models_of([30, 31]), NightOf(right=NIGHT_PROMPTS, model="c", prompts="other")])
    text = read_page(make_report(settings, (), folder=tmp_path, kind="leaderboard").html)
    assert "it was asked other prompts: 0 of the task's 40 prompts, 40 more" in text
    text = read_page(make_report(settings, ["night-002"], folder=tmp_path, kind="leaderboard").html)
    assert "sums: only c ran this task, so there is nothing to compare." in text
    with connect(settings.database_path, 10) as connection:
        connection.execute("update prompts set target = '7'")
        connection.execute(
            """update runs set spec_json = json_merge_patch(spec_json, '{"prompts": {"template": "{{ q }}"}}')
            where model = 'c'"""
        )
    text = read_page(make_report(settings, (), folder=tmp_path, kind="leaderboard").html)
    assert re.search(
        r"40 more; .{,20}assayline gate.{,20} compares them paired by source row: the template differs", text
    )


def test_names_of_any_kind_stay_text_and_inside_the_data_folder(settings):
    hostile = "<script>alert(1)</script>|`[red]"
    given_nights(
        settings,
        [NightOf(model=hostile, name="../../etc"), NightOf(model="b", model_id="b", right=3, name="../../etc")],
    )
    written = make_report(settings, ["../../etc"], kind="leaderboard")
    assert written.html.resolve().is_relative_to((settings.data_dir / "leaderboards").resolve())
    assert "<script>alert" not in text_of(written.html)


def test_the_command_prints_tables_and_says_what_it_does_not_know(board, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("ASSAYLINE_DATA_DIR", str(board[0].data_dir))
    assert run("report", ["--leaderboard", "won", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out.replace("\u00a0", " ")
    assert "won: a beats every other model" in out and f"Report: {tmp_path / 'report.html'}" in out
    assert "2–3" in out and "race" not in out
    assert run("report", ["--leaderboard", "wonn"]) == 2
    error = capsys.readouterr().err
    assert "The database has no run, spec or prompt set 'wonn': did you mean 'won'?" in error


def test_an_empty_database_has_no_leaderboard(settings):
    given_nights(settings, [])
    with pytest.raises(SpecError, match="A leaderboard has no runs yet"):
        make_report(settings, (), kind="leaderboard")


def test_a_night_shows_the_leaderboard_of_its_prompts_if_another_model_was_asked_them(settings, monkeypatch, caplog):
    shown: list[dict[str, str]] = []
    monkeypatch.setattr(reporting, "create_markdown_artifact", lambda **page: shown.append(page))
    log = logging.getLogger("night")
    winner, other = models_of([40, 12])
    given_nights(settings, [winner])
    assert write_leaderboard(settings, log, "sums") is None
    assert caplog.messages == [] and not (settings.data_dir / "leaderboards").exists()
    assert write_leaderboard(settings, log, "products") is None
    assert "Failed to write the leaderboard: SpecError: " in caplog.messages[0]
    given_nights(settings, [other], first=1)
    board = write_leaderboard(settings, log, "sums")
    reporting.publish_page("leaderboard", "sums", board.document, board.document.headline[0])
    [page] = shown
    text, headline = page["markdown"], page["description"]
    assert page["key"] == "leaderboard-sums" and "a beats every other model" in headline
    assert headline in text.replace("\\", "").replace("\u00a0", " ")
    assert "](data:image/svg+xml;base64," in text and str(settings.data_dir) not in text
