"""How a run ended, from its rows in the database."""

from typing import Any

import pytest
from run_kit import manifest_of

from assayline.run.evaluation import conclude_run
from assayline.store.ingest import RunOutcome
from assayline.store.manifest import Manifest, PromptCounts

REQUESTS = 100
SOUND: dict[str, Any] = {"broken": {}, "errors": {}, "unsent": 0, "sent": REQUESTS, "load_ends": {}}


def conclude(max_error_share: float = 0.5, **outcome: Any) -> Manifest:
    run = manifest_of(prompts=PromptCounts(REQUESTS, 0, REQUESTS, 0, 1))
    return conclude_run(run, RunOutcome(**{**SOUND, **outcome}), max_error_share)


def message_of(**outcome: Any) -> str:
    """Why the run failed; it has, and there is nothing left to ask."""
    run = conclude(**outcome)
    assert (run.state, run.is_final) == ("failed", True) and run.message
    return run.message


def test_a_run_that_adds_up_is_completed():
    run = conclude()
    assert (run.state, run.message, run.is_final) == ("completed", None, False)


@pytest.mark.parametrize("reason", ["max_requests", "max_duration_s", "end_of_trace"])
def test_a_load_may_end_before_its_requests_do(reason):
    run = conclude(unsent=70, sent=30, errors={"timeout": 3}, load_ends={reason: "Sending has ended."})
    assert run.state == "completed"


@pytest.mark.parametrize(("unsent", "words"), [(70, "70 requests were left unsent."), (0, "Nothing was left unsent.")])
def test_a_load_that_its_errors_ended_fails_the_run_however_few_they_are(unsent, words):
    ends = {"max_errors": "Sending has ended: 3 requests ended as error rows, and load.max_errors is 3."}
    message = message_of(unsent=unsent, sent=100 - unsent, errors={"timeout": 2, "http_500": 1}, load_ends=ends)
    assert "stopped because of its errors. Sending has ended: 3 requests" in message and words in message
    assert "timeout 2, http_500 1" in message and "--fresh" in message


def test_a_run_that_sent_nothing_fails():
    message = message_of(unsent=100, sent=0, load_ends={"end_of_trace": "Sending has ended: the trace has 0 stamps."})
    assert "sent nothing" in message and "the trace has 0 stamps" in message and "hint: change load" in message
    assert "No event gives the reason." in message_of(unsent=100, sent=0)


def test_requests_that_could_not_be_rendered_are_not_sent_either():
    assert "sent nothing" in message_of(unsent=60, sent=0, errors={"render": 40})


def test_errors_are_counted_among_what_was_asked():
    assert conclude(errors={"timeout": 50}).state == "completed"
    assert conclude(errors={"timeout": 10}, unsent=80, sent=20).state == "completed"
    message = message_of(errors={"timeout": 11}, unsent=80, sent=20)
    assert "11 error rows among 20 sent requests" in message and "timeout 11" in message


def test_conclusion_reports_inconsistent_counts_first():
    run = conclude(broken={"missing_requests": 2}, load_ends={"max_errors": "Sending has ended."})
    assert run.state == "failed" and not run.is_final and "is inconsistent" in str(run.message)
