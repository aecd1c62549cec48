"""The report's section on judges, of a judged run and of a judge, and judged pairs on the leaderboard."""

import html
import re
from pathlib import Path

import pytest
from judge_kit import PLACES, give_judge, give_judge_run, give_texts, vote
from row_kit import Store, text_of
from run_kit import settings_in

from assayline.report.board import read_board
from assayline.report.make import make_report, open_database
from assayline.report.run.judges import say_agreement
from assayline.settings import Settings
from assayline.store.database import connect

pytestmark = pytest.mark.slow

CORRECT, INCORRECT = "correct", "incorrect"
ITEMS = [f"p{i}" for i in range(40)]


def texts(page: Path) -> str:
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", text_of(page))).replace("\u00a0", " "))


def give_judged_runs(settings: Settings) -> None:
    """Two runs; a panel of two judges of the first, the second of which guesses; and a judge of their pairs."""
    with connect(settings.database_path, 10) as connection:
        store = Store(connection)
        spec = '{"sampling": {}, "engine": {"args": {}}, "workers": 1}'
        for run in ("judged", "other"):
            store.given(
                "runs", {"run_id": run, "name": f"name of {run}", "model": f"org/{run}-model", "spec_json": spec}
            )
        labels = [CORRECT if i % 3 else INCORRECT for i in range(40)]
        careful = [vote(item, CORRECT if i % 3 or i == 9 else INCORRECT, labels[i], judge="careful") for i, item in
                   enumerate(ITEMS)]  # fmt: skip
        careful[-1] = {**careful[-1], "word": None, "error": "unreadable"}
        guessing = [vote(item, CORRECT if i % 2 else INCORRECT, judge="guessing") for i, item in enumerate(ITEMS)]
        give_judge(store, careful)
        give_judge(store, guessing)
        give_judge_run(store, "careful", "judged", name="trial 1", rubric="helpful")
        give_judge_run(store, "guessing", "judged", name="trial 2", rubric="helpful")
        pairs = [
            vote(item, "first" if i % 4 == 0 or first == "a" else "second", judge="pairs", run="judged", other="other",
                 first=first)
            for i, item in enumerate(ITEMS) for first in "ab"
        ]  # fmt: skip
        give_judge(store, pairs, values=PLACES)
        give_judge_run(store, "pairs", "judged", "other", name="preference")
        store.given("prompts", *({"run_id": "other", "prompt_id": item} for item in ITEMS))
        connection.execute(
            "insert into raw.completions by name select run_id, request_id, 'w' as worker, 0 as engine_generation, "
            "8 as window_requests, '{}' as text, 1.0 as arrived_at_s, 3.0 as finished_at_s, 6 as output_tokens, "
            "9 as prompt_tokens from raw.requests"
        )
        for run in ("judged", "other"):
            give_texts(store, run, ITEMS)
            store.given("scorers", {"run_id": run})
            store.given("scores", *({"run_id": run, "prompt_id": item, "value": 1.0} for item in ITEMS))


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    settings = settings_in(tmp_path_factory.mktemp("judged"))
    give_judged_runs(settings)
    return settings


def test_report_of_a_judged_run_audits_its_judges(judged, tmp_path):
    page = texts(make_report(judged, "judged", folder=tmp_path).html)
    assert "helpful, of careful: Agrees with the labels beyond chance: kappa 0.9" in page
    assert (
        "helpful, of guessing: No evidence that it agrees with the labels beyond chance: kappa 0.00, 95% "
        "interval −0.30 to 0.30" in page
    )
    assert "helpful, panel of 2 runs: Agrees with" in page
    assert "1 of 40 requests gave no verdict and are left out" in page
    assert "preference, of pairs: Agreement with people is unknown: 80 labels are none of the verdicts." in page
    assert "It prefers the answer shown first: position bias +25.0 points" in page
    assert "helpful: low verdict: prompt p" in page
    assert "helpful: disagrees with the label: prompt p" in page
    assert "judged answers p0" in page and "question p0" in page and "because" in page
    assert "only if the labelled answers are a random subset" in page


def test_report_separates_the_time_of_judging(judged, tmp_path):
    text = make_report(judged, "judged", folder=tmp_path).text.replace("\\", "")
    assert "**Time and cost of the model and of judging**" in text
    for line in ("| model | org/judged-model |", "| judge, helpful | of careful |", "| all judges |"):
        assert line in text
    assert "| judging, output tokens | 960\u00a0tokens |" in text, "6 tokens for each of 160 verdicts"


def test_report_of_a_judge_has_its_audit_and_names_the_judged_run(judged, tmp_path):
    written = make_report(judged, "careful", folder=tmp_path)
    page = texts(written.html)
    assert "This run judges the answers of run judged (name of judged, org/judged-model)." in page
    assert "kappa 0.9" in page and "panel" not in page
    assert "| answers of | judged (name of judged, org/judged-model) |" in written.text.replace("\\", "")
    page = texts(make_report(judged, "pairs", folder=tmp_path).html)
    assert "This run compares the answers of run a, judged (" in page and "and run b, other (" in page


def test_report_without_judges_has_no_section(judged, tmp_path):
    with connect(judged.database_path, 10) as connection:
        Store(connection).given("runs", {"run_id": "alone", "spec_json": '{"engine": {}}'})
    assert "Judges" not in make_report(judged, "alone", folder=tmp_path).text


AUDIT = {
    "requests": 40, "judged_requests": 40, "labelled_requests": 40, "unknown_labels": 0, "kappa": 0.5, "kappa_low": 0.1,
    "kappa_high": 0.9, "weighted_kappa": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "Agrees with the labels beyond chance: kappa 0.50, 95% interval 0.10 to 0.90, 40 labelled verdicts."),
        ({"kappa_low": 0.0}, "No evidence that it agrees with the labels beyond chance: kappa 0.50"),
        ({"kappa_low": -0.9, "kappa_high": -0.1}, "Disagrees with the labels more often than chance"),
        ({"labelled_requests": 0}, "unknown: no verdict has a label"),
        ({"labelled_requests": 0, "unknown_labels": 3}, "unknown: 3 labels are none of the verdicts"),
        ({"judged_requests": 0}, "No verdict can be read."),
        ({"kappa": None}, "undefined: the labels of all 40 labelled verdicts are equal"),
        ({"kappa": 1.0, "kappa_low": None}, "without an interval: every label agrees"),
        ({"kappa": 0.4, "kappa_low": None}, "without an interval: there are too few labelled prompts"),
        (
            {"weighted_kappa": 0.7, "weighted_kappa_low": 0.5, "weighted_kappa_high": 0.8},
            "weighted kappa 0.70, 95% interval 0.50 to 0.80",
        ),
    ],
)
def test_agreement_claims_no_more_than_the_interval(changes, words):
    assert words in say_agreement({**AUDIT, **changes})


def test_leaderboard_ranks_judged_pairs_and_leaves_judges_out(judged, tmp_path):
    page = texts(make_report(judged, (), folder=tmp_path, kind="leaderboard").html)
    rows = open_database(judged).query(read_board)
    assert "preference: org/judged-model beats every other model" in page
    assert not any(cell["run_id"] in ("careful", "guessing", "pairs") for task in rows.tasks for cell in task.cells)
    (pairs,) = rows.judged
    assert [(row["model"], row["best_rank"], row["worst_rank"]) for row in pairs.ranks] == [
        ("org/judged-model", 1, 1),
        ("org/other-model", 2, 2),
    ]
