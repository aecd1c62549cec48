"""stg_samples: what scorers see of a prompt row and repeat."""

import pytest
from row_kit import as_rows


def test_an_answer_is_a_sample(store):
    store.given("prompts", {"target": "4", "source_row": 7})
    store.given("requests", {"request_id": "r0", "repeat_index": 0}, {"request_id": "r1", "repeat_index": 1})
    store.given("completions", {"request_id": "r0", "text": "four"})
    store.expect(
        "stg_samples",
        *as_rows(
            "request_id repeat_index source_row status answer target options option_logprobs error_kind",
            ("r0", 0, 7, "ok", "four", "4", None, None, None),
            ("r1", 1, 7, "missing", None, "4", None, None, None),
        ),
    )


def test_stg_samples_ignores_partial_answers_of_errors(store):
    store.given_answers({"text": "4", "error_kind": "killed_engine", "error_message": "gone"}, target="4")
    store.expect(
        "stg_samples",
        {"status": "error", "answer": None, "error_kind": "killed_engine", "error_message": "gone"},
    )


def test_stg_samples_excludes_reasoning_from_the_answer(store):
    store.given_answers({"text": "5", "reasoning": "4, no, 5"}, target="4")
    store.expect("stg_samples", {"answer": "5"})


def given_options(store, *completions, run_id="run"):
    """One prompt with an option per completion; None for an answer that is missing."""
    store.given("runs", {"run_id": run_id})
    store.given("prompts", {"run_id": run_id, "target": "b", "options": list("abc"[: len(completions)])})
    # The order in the table is not that of the options.
    for index in reversed(range(len(completions))):
        store.given(
            "requests",
            {
                "run_id": run_id,
                "request_id": f"r{index}",
                "option_index": index,
                "option": "abc"[index],
                "option_tokens": index + 1,
            },
        )
    for index, completion in enumerate(completions):
        if completion is not None:
            store.given("completions", {"run_id": run_id, "request_id": f"r{index}", **completion})


def test_the_options_of_a_prompt_are_one_sample(store):
    given_options(store, {"option_logprob": -1.0}, {"option_logprob": -2.0}, {"option_logprob": -3.0})
    store.expect(
        "stg_samples",
        {
            "request_id": "r0",
            "status": "ok",
            "answer": None,
            "target": "b",
            "options": ["a", "b", "c"],
            "option_logprobs": [-1.0, -2.0, -3.0],
            "option_tokens": [1, 2, 3],
        },
    )


@pytest.mark.parametrize(
    ("second", "third", "status", "error_kind"),
    [
        ({"error_kind": "late"}, {"option_logprob": -1.0}, "error", "late"),
        ({"error_kind": "late"}, {"error_kind": "later"}, "error", "late"),
        (None, {"option_logprob": -1.0}, "missing", None),
        (None, {"error_kind": "later"}, "missing", "later"),
    ],
)
def test_without_all_of_its_options_a_sample_has_no_likelihoods(store, second, third, status, error_kind):
    given_options(store, {"option_logprob": -1.0}, second, third)
    store.expect(
        "stg_samples",
        {"status": status, "error_kind": error_kind, "options": ["a", "b", "c"], "option_logprobs": None},
    )


def test_a_bad_row_of_a_run_with_options_is_an_error_sample(store):
    given_options(store, {"option_logprob": -1.0}, {"option_logprob": -2.0})
    store.given("prompts", {"prompt_id": "bad", "target": None})
    store.given("requests", {"request_id": "bad", "prompt_id": "bad"})
    store.given("completions", {"request_id": "bad", "worker": "prepare", "error_kind": "row_error"})
    store.expect(
        "stg_samples",
        {"prompt_id": "p", "status": "ok", "options": ["a", "b"]},
        {"prompt_id": "bad", "status": "error", "options": None},
    )
