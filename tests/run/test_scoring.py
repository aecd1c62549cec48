"""Scoring as a step: at a run's end, again afterwards, and after a rebuild."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_kit import FAKE, answer_in_order, answer_run, begin_and_vanish, complete, copy_run, query, settings_in

from assayline.errors import PromptError, SpecError
from assayline.flows.cli import run
from assayline.run.begin import begin_evaluation, plan_run
from assayline.run.rebuild import rebuild_run
from assayline.run.rescore import rescore_run
from assayline.scorers import process
from assayline.settings import Settings
from assayline.spec.evaluation import EvalSpec
from assayline.spec.judges import JudgeScorer
from assayline.store import scoring
from assayline.store.database import connect
from assayline.store.locks import lock_run
from assayline.store.manifest import SCORERS_NAME
from assayline.store.metrics import ensure_metrics, forget_metrics, warn_unread
from assayline.store.score_files import FunctionScores
from assayline.store.thread import DatabaseThread

pytestmark = pytest.mark.slow

SUMS = [{"question": f"{number} + {number}", "answer": str(2 * number)} for number in range(6)]
SCORES = "select scorer, value, extracted, explanation from scores order by all"


@pytest.fixture(scope="module")
def make_sums(make_spec: Any) -> Callable[..., EvalSpec]:
    """A spec of six sums for the fake engine, whose answer is the last word of the question."""

    def make(rows: list[dict[str, Any]] = SUMS, columns: Any = None, repeats: int = 1, **fields: Any) -> EvalSpec:
        prompts = {
            "source": {"kind": "inline", "rows": rows},
            "columns": {"target": "answer"} if columns is None else columns,
            "repeats": repeats,
        }
        made: EvalSpec = make_spec(engine=FAKE, prompts=prompts, chat={"template": "plain"}, **fields)
        return made

    return make


def run_with(spec: EvalSpec, settings: Settings, *texts: str | None) -> Path:
    """A completed run with these answers; its folder."""
    return settings.run_dir(answer_run(spec, settings, *texts).run_id)


def test_score_run_counts_rows_that_cannot_be_asked_as_wrong(make_sums, settings):
    """A set in which two of eight questions are null is no better than one in which two are answered wrongly."""
    rows = [*SUMS, {"question": None, "answer": "1"}, {"question": None, "answer": "2"}, {"question": None}]
    spec = make_sums(rows)
    metrics = complete(spec, settings).metrics
    found = query(
        settings,
        "select accuracy, samples, value from main.run join accuracy using (run_id) join metric_value using (run_id) "
        "where metric = 'unasked_rows'",
    )
    right = query(settings, "select count(*) from scores where value = 1")[0][0]
    assert found == [(right / 8, 8, 3)]
    shown = {row["metric"]: row["value"] for row in metrics}
    assert shown["rows that could not be asked"] == 3


def test_a_run_with_targets_is_scored_by_exact_match(make_sums, settings):
    run_with(make_sums(), settings, "0", " 2\n", "5", None, "8", "10")
    assert query(settings, "select scorer, kind, ordinal, samples, right_samples, mean from accuracy") == [
        ("exact_match", "exact_match", 0, 6, 4, 4 / 6)
    ]
    assert query(settings, "select scorer, accuracy from main.run") == [("exact_match", 4 / 6)]
    wrong = "select value, extracted, explanation from scores where value < 1 order by all"
    assert query(settings, wrong) == [(0.0, "5", "not the target: 4"), (0.0, None, "error: broken")]


def test_a_run_without_scorers_is_not_scored(make_sums, settings):
    run_with(make_sums(scorers=[]), settings, *"012345")
    assert query(settings, "from scorers") == query(settings, "from scores") == []


def test_json_is_checked_under_the_schema_of_its_request(make_sums, settings):
    whole, text = {"type": "integer"}, {"type": "string"}
    forms = [whole, json.dumps(whole), text, None]
    rows = [
        {"question": str(number), "sampling": form and {"structured_outputs": {"json": form}}}
        for number, form in enumerate(forms)
    ]
    own = {"kind": "json", "name": "own", "json_schema": text}
    asked = {"structured_outputs": {"json": whole}}
    spec = make_sums(rows, {"sampling": "sampling"}, scorers=[{"kind": "json"}, own], sampling=asked)
    run_dir = run_with(spec, settings, '"a"', "7", "7", "7")
    joined = "score join raw.prompts using (run_id, prompt_id)"
    found = query(settings, f"select list(value order by source_row) from {joined} group by scorer order by scorer")
    assert found == [([0, 1, 0, 1],), ([1, 0, 0, 0],)]
    with connect(settings.database_path, 10) as connection:
        words = str(warn_unread(connection, run_dir.name))
    assert "json found another form than the demanded one in 50% of 4 answers" in words


def test_prompts_without_a_target_have_no_score_unless_none_is_needed(make_sums, settings):
    """A column that is named may be empty in the first row."""
    rows = [{"question": "2", "answer": None}, {"question": "1", "answer": "1"}, {"question": "3", "answer": None}]
    run_with(make_sums(rows=rows, scorers=[{"kind": "numeric"}, {"kind": "json"}]), settings, "{}", "1", None)
    counts = "select scorer, ordinal, samples, right_samples from accuracy order by ordinal"
    assert query(settings, counts) == [("numeric", 0, 1, 1), ("json", 1, 3, 2)]


def test_every_scorer_of_a_spec_scores(make_sums, settings):
    expected = {
        "near": (4, {"kind": "numeric", "tolerance": 1, "name": "near"}),
        "numeric": (3, {"kind": "numeric"}),
        "contains": (3, {"kind": "contains"}),
        "regex": (2, {"kind": "regex", "pattern": r"is (\d+)"}),
        "token_f1": (2, {"kind": "token_f1"}),
        "choice": (2, {"kind": "choice", "letters": "0123456789"}),
        "json": (2, {"kind": "json", "json_schema": {"type": "integer"}}),
        "exact_match": (1, {"kind": "exact_match"}),
    }
    spec = make_sums(scorers=[scorer for _, scorer in expected.values()])
    run_with(spec, settings, "it is 0", "3", "4", "x", '"6"', "the answer is 10.")
    found = query(settings, "select scorer, round(mean * 6, 3) from accuracy order by ordinal")
    assert found == [(name, right) for name, (right, _) in expected.items()]
    assert query(settings, "select scorer from main.run") == [("near",)]
    arguments = query(settings, "select arguments_json from scorers where scorer = 'near'")
    assert json.loads(arguments[0][0]) == {
        "kind": "numeric", "name": "near", "relative_tolerance": 0.0, "take": "last", "tolerance": 1.0,
    }  # fmt: skip


def test_a_run_whose_answers_or_targets_are_hardly_read_says_so(make_sums, settings):
    rows = [{"question": str(number), "answer": target} for number, target in enumerate(["1", "2", "none", "4"])]
    spec = make_sums(rows=rows, scorers=[{"kind": "numeric"}])
    result = answer_run(spec, settings, "The answer is 1.", "1 or 2", "3", "I do not know")
    assert (
        "numeric found no number in the answer in 25%, only the last of several numbers in 25%, no number in the "
        "target in 25% of 4 answers. hint: ask for the form of the answer in the prompt, or raise sampling.max_tokens; "
        "docs/guides/scoring.md says how an answer is found."
    ) in result.notes
    found = query(settings, "select found_by, count(*) from score group by found_by order by found_by nulls last")
    assert found == [("last", 1), ("only", 1), ("stated", 1), (None, 1)]


@pytest.mark.parametrize(
    ("keys", "answers"),
    [("1 2 4 C", "ABDC"), ("0 1 3 C", "ABDC"), ("1 2 3 C", "BCDC")],
    ids=["from one, as the last shows", "from zero, as the first shows", "from zero, as nothing shows"],
)
def test_keys_of_options_are_counted_from_one_if_none_is_zero_and_one_is_the_last(make_sums, settings, keys, answers):
    rows = [{"question": key, "answer": f"{key} "} for key in keys.split()]
    run_with(make_sums(rows=rows, scorers=[{"kind": "choice"}]), settings, *answers)
    assert query(settings, "select right_samples from accuracy") == [(4,)]


def test_a_cancelled_run_has_scores_of_what_was_answered_and_a_resumed_one_of_all(make_sums, settings):
    evaluation = begin_evaluation(make_sums(), settings)
    evaluation.prepare()
    answer_in_order(evaluation, "0", "3")
    evaluation.abandon("cancelled")
    assert query(settings, "select scorer, count(*), avg(value) from scores group by scorer") == [
        ("exact_match", 2, 0.5)
    ]
    complete(make_sums(), settings)
    assert query(settings, "select samples, right_samples from accuracy") == [(6, 1)]


@pytest.mark.parametrize(
    ("scorer", "sentence"),
    [
        ({"kind": "regex", "pattern": "(a"}, "not a valid regular expression: missing \\)"),
        ({"kind": "regex", "pattern": "(?<=a"}, "use Python's syntax"),
        ({"kind": "regex", "pattern": "a)", "name": "mine"}, "of mine is not a valid regular expression"),
        ({"kind": "choice", "letters": "AA"}, "expected different letters"),
        ({"kind": "choice", "letters": "A]"}, "expected different letters"),
        ({"kind": "python", "function": "json:missing"}, "has no attribute 'missing'"),
        ({"kind": "python", "function": "nowhere:f"}, "no module 'nowhere'"),
    ],
)
def test_a_scorer_that_is_none_is_refused_before_an_engine_starts(make_sums, settings, scorer, sentence):
    with pytest.raises(SpecError, match=sentence):
        plan_run(make_sums(scorers=[scorer]), settings)


def test_a_scorer_that_no_row_can_serve_stops_the_run_at_once(make_sums, settings):
    evaluation = begin_evaluation(make_sums(columns={}, scorers=[{"kind": "json"}, {"kind": "numeric"}]), settings)
    with pytest.raises(PromptError, match=r"The scorer numeric compares answers with a target.*prompts.columns.target"):
        evaluation.prepare()
    evaluation.abandon("failed")
    assert query(settings, "from runs") == []


# --- assayline score


@pytest.fixture(scope="module")
def run_once(make_sums: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, which tests have copies of."""
    settings = settings_in(tmp_path_factory.mktemp("run-once"))
    return run_with(make_sums(), settings, "0", "so 2", "it is 4.", "7", None, "ten")


@pytest.fixture
def run_dir(run_once: Path, settings: Settings) -> Path:
    return copy_run(run_once, settings)


def test_a_scorer_is_added_to_a_run_and_outlives_the_database(run_dir, settings, capsys):
    arguments = [run_dir.name, "--scorer", "numeric", "--scorer", "{kind: contains, name: inside}", "--show", "2"]
    assert run("score", arguments) == 0
    shown = capsys.readouterr().out
    assert "numeric" in shown and "inside" in shown and "7, not 6" in shown and "target   6" in shown
    rows = "select scorer, ordinal, samples, right_samples from accuracy order by ordinal"
    expected = [("exact_match", 0, 6, 1), ("numeric", 1, 6, 3), ("inside", 2, 6, 3)]
    assert query(settings, rows) == expected
    assert query(settings, "select scorer, accuracy from main.run") == [("exact_match", 1 / 6)]
    before = query(settings, SCORES)
    settings.database_path.unlink()
    rebuilt = rebuild_run(run_dir, settings.database_path, 10)
    assert rebuilt.scores == {"exact_match": 6, "numeric": 6, "inside": 6}
    DatabaseThread(settings).run(ensure_metrics)
    assert query(settings, rows) == expected
    assert query(settings, SCORES) == before


def test_the_same_name_replaces_and_keeps_its_place(run_dir, settings):
    run("score", [run_dir.name, "--scorer", "numeric"])
    assert run("score", [run_dir.name, "--scorer", "{kind: numeric, tolerance: 100}"]) == 0
    assert run("score", [run_dir.name, "--scorer", "{kind: contains, name: exact_match}"]) == 0
    rows = query(settings, "select scorer, kind, ordinal, right_samples from accuracy order by ordinal")
    assert rows == [("exact_match", "contains", 0, 3), ("numeric", "numeric", 1, 4)]
    assert query(settings, "select value from metric_values where metric = 'accuracy' order by detail") == [
        (0.5,), (4 / 6,)
    ]  # fmt: skip


def test_score_without_a_scorer_scores_all_of_the_run_again(run_dir, settings):
    run("score", [run_dir.name, "--scorer", "numeric"])
    before = query(settings, SCORES)
    with connect(settings.database_path, 10) as connection:
        connection.execute("update scores set value = 0.5")
    assert run("score", [run_dir.name]) == 0
    assert query(settings, SCORES) == before


def test_score_stale_scores_the_runs_again_whose_scorer_has_changed(run_dir, settings):
    before, definition = query(settings, SCORES), query(settings, "select definition from scorers")
    with connect(settings.database_path, 10) as connection:
        connection.execute("update scores set value = 0.5")
    assert run("score", ["--stale"]) == 0
    assert query(settings, SCORES) != before, "its scorer is that of today"
    with connect(settings.database_path, 10) as connection:
        connection.execute("update scorers set definition = 'before'")
    assert run("score", ["--stale"]) == 0
    assert (query(settings, SCORES), query(settings, "select definition from scorers")) == (before, definition)


def test_define_scorer_changes_with_the_code_that_a_scorer_uses(monkeypatch):
    kinds = ("numeric", "choice", "json", "loglikelihood", "verdict", "exact_match")
    read_text, change = Path.read_text, {"file": "", "text": "", "other": ""}

    def read(path: Path, *arguments: Any) -> str:
        text = read_text(path, *arguments)
        if not str(path).endswith(change["file"] or "nothing"):
            return text
        assert change["text"] in text
        return text.replace(change["text"], change["other"])

    def define(*changed: str) -> set[str]:
        change.update(zip(("file", "text", "other"), changed, strict=False))
        process.read_own_code.cache_clear()
        scoring.define_scorer.cache_clear()
        found = {kind: scoring.define_scorer(kind) for kind in kinds}
        return {kind for kind in kinds if found[kind] != before.setdefault(kind, found[kind])}

    before: dict[str, str] = {}
    monkeypatch.setattr(Path, "read_text", read)
    assert define() == set() and len(set(before.values())) == len(kinds)
    assert define("numbers.py", "of doubles", "of double") == set(), "docstrings decide nothing"
    assert define("numbers.py", "ROUNDING = 1e-15", "ROUNDING = 1e-9") == {"numeric"}
    assert define("verdict.py", "1 - value", "0 - value") == {"verdict"}
    assert define("reading.py", "antwort", "antwoord") == set(kinds)
    monkeypatch.undo()
    process.read_own_code.cache_clear()
    scoring.define_scorer.cache_clear()


def test_a_dry_run_stores_nothing(run_dir, settings, capsys):
    before = query(settings, SCORES)
    with connect(settings.database_path, 10) as connection:
        forget_metrics(connection, run_dir.name)
    assert run("score", [run_dir.name, "--scorer", "numeric", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "Dry run: nothing was stored." in shown and "50%" in shown
    assert query(settings, SCORES) == before
    assert not (run_dir / SCORERS_NAME).exists()
    assert query(settings, "select run_id from measured_runs") == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--scorer", "nonsense"], "the scorer: there is no kind 'nonsense'; known: choice"),
        (["--scorer", "numerics"], "did you mean 'numeric'?"),
        (["--scorer", "{kind: regex}"], "pattern: missing, but required"),
        (["--scorer", "{kind: numeric, tolerances: 1}"], "tolerances: unknown key; did you mean 'tolerance'?"),
        (["--scorer", "{kind: numeric, tolerance: -1}"], "tolerance: given -1"),
        (["--scorer", "{kind: regex, pattern: '(a'}"], "not a valid regular expression"),
        (["--scorer", "{kind: json, json_schema: {type: x}}"], "not a valid JSON schema"),
        (["--scorer", "{pattern: a}"], "without a kind"),
        (["--scorer", "[1]"], "the scorer: given [1]; expected a mapping"),
        (["--scorer", "{"], "neither a kind nor a YAML mapping"),
        (["--scorer", "numeric", "--scorer", "numeric"], "two scorers are called numeric"),
        (["--scorer", "loglikelihood"], "has no likelihoods of options"),
    ],
)
def test_score_rejects_an_unusable_scorer(run_dir, settings, capsys, arguments, sentence):
    before = query(settings, SCORES)
    assert run("score", [run_dir.name, *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and sentence in error
    assert query(settings, SCORES) == before


def test_a_judge_that_gave_no_readable_verdict_is_a_scorer_without_scores(run_dir, settings):
    judge = JudgeScorer.model_validate({"kind": "judge", "name": "helpful", "spec": ["@helpfulness"], "model": "any"})
    rescored = rescore_run(run_dir, settings, [judge], scores={"helpful": FunctionScores("any", [])})
    [row] = rescored.accuracies
    assert (row["scorer"], row["samples"], row["mean"]) == ("helpful", 1, 0.0), "the answer that is an error row"


def test_score_rejects_a_scorer_without_any_target(make_sums, settings, capsys):
    run_dir = run_with(make_sums(columns={}), settings, *"012345")
    assert query(settings, "from scorers") == query(settings, "from scores") == []
    assert run("score", [run_dir.name, "--scorer", "numeric"]) == 2
    assert "numeric needs a target, and no answered prompt" in capsys.readouterr().err
    assert not (run_dir / SCORERS_NAME).exists()
    assert query(settings, "from scorers") == []
    assert run("score", [run_dir.name, "--scorer", "json"]) == 0


def test_a_run_that_has_not_finished_is_scored_only_on_demand(make_sums, settings, capsys):
    evaluation = begin_and_vanish(make_sums(), settings)
    answer_in_order(evaluation, "0", "2")
    assert run("score", [evaluation.run_id, "--scorer", "numeric"]) == 2
    assert "has not finished" in capsys.readouterr().err
    rebuild_run(evaluation.run_dir, settings.database_path, 10)
    assert run("score", [evaluation.run_id, "--scorer", "numeric", "--force"]) == 0
    assert query(settings, "select scorer, samples from accuracy where scorer = 'numeric'") == [("numeric", 2)]


@pytest.mark.parametrize(
    ("prepare", "sentence"),
    [
        (lambda run_dir, settings: lock_run(run_dir), "is in use by"),
        (lambda run_dir, settings: settings.database_path.unlink(), "assayline db rebuild "),
        (lambda run_dir, settings: (run_dir / SCORERS_NAME).write_text("{"), SCORERS_NAME),
    ],
    ids=["in use", "not in the database", "a damaged list of scorers"],
)
def test_score_rejects_a_run_that_cannot_be_scored(run_dir, settings, capsys, prepare, sentence):
    held = prepare(run_dir, settings)
    assert run("score", [run_dir.name, "--scorer", "numeric"]) == 6, held
    assert sentence in capsys.readouterr().err


def test_the_list_names_every_kind(capsys):
    assert run("score", ["--list"]) == 0
    shown = capsys.readouterr().out
    for kind in (
        "exact_match",
        "contains",
        "regex",
        "numeric",
        "choice",
        "token_f1",
        "json",
        "loglikelihood",
        "verdict",
    ):
        assert kind in shown
