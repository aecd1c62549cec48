"""Token times and barrier mode, on one engine that does both."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from engine_helpers import Asker, Feed, by_id, stamps_of

from assayline.engines.offline import OfflineEngine
from assayline.store.database import connect
from assayline.store.load import load_parts
from assayline.store.parts import write_part

pytestmark = pytest.mark.vllm


def test_every_token_has_its_stamp(stamped_engine: OfflineEngine, asker: Asker) -> None:
    """Peers, row 5: two-token outputs have a gap, one-token outputs a first token."""
    requests = [asker.ask(max_tokens=length, ignore_eos=True) for length in (1, 2, 3, 17)]
    answers = by_id(stamped_engine.generate(requests))
    for request in requests:
        answer = answers[request.request_id]
        stamps = answer.token_at_s
        assert stamps is not None and answer.output_token_ids is not None
        assert len(stamps) == len(answer.output_token_ids) == answer.output_tokens == request.sampling["max_tokens"]
        assert all(before < after for before, after in pairwise(stamps))
        assert (stamps[0], stamps[-1]) == (answer.first_token_at_s, answer.last_token_at_s)
        assert all(before <= after for before, after in pairwise(stamps_of(answer)))


def test_one_token_has_a_time_to_first_token_and_no_time_per_token(
    stamped_engine: OfflineEngine, asker: Asker, tmp_path: Path
) -> None:
    """Peers, row 5: what is undefined is NULL, not 0."""
    requests = [asker.ask(max_tokens=1), asker.ask(max_tokens=2, ignore_eos=True)]
    write_part(tmp_path, "requests", "x", requests)
    write_part(tmp_path, "completions", "x", list(stamped_engine.generate(requests)))
    with connect(tmp_path / "test.duckdb", 0) as connection:
        load_parts(connection, "run", tmp_path)
        query = "select output_tokens, ttft_s > 0, tpot_s > 0 from stg_requests order by output_tokens"
        assert connection.execute(query).fetchall() == [(1, True, None), (2, True, True)]
        assert connection.execute("select count(*) from token_gap").fetchall() == [(1,)]


def test_stamps_change_nothing_else(stamped_engine: OfflineEngine, engine: OfflineEngine, asker: Asker) -> None:
    """Peers, row 15: streamed or not, texts, ids, reasons and log-probabilities are kept whole."""
    asked: list[dict[str, Any]] = [
        {"logprobs": 2, "prompt_logprobs": 1},
        {"stop": ["3"]},
        {"stop": ["3"], "include_stop_str_in_output": True},
        {"max_tokens": 9, "ignore_eos": True, "logprobs": 0},
    ]
    requests = [asker.ask("What is 9 + 4?", **sampling) for sampling in asked]
    streamed, whole = by_id(stamped_engine.generate(requests)), by_id(engine.generate(requests))
    for request in requests:
        one, other = streamed[request.request_id], whole[request.request_id]
        for name in ("text", "output_token_ids", "finish_reason", "stop_reason", "output_tokens", "prompt_tokens"):
            assert getattr(one, name) == getattr(other, name), name
        assert len(one.token_at_s or []) == one.output_tokens
        assert one.cumulative_logprob == pytest.approx(other.cumulative_logprob, abs=1e-4)
        for name in ("logprobs", "prompt_logprobs"):
            ours, theirs = getattr(one, name), getattr(other, name)
            assert (ours is None) == (theirs is None), name
            assert [position and position.keys() for position in ours or []] == [
                position and position.keys() for position in theirs or []
            ]


def test_a_barrier_waits_for_the_slowest_and_flushes_the_remainder(
    stamped_engine: OfflineEngine, asker: Asker
) -> None:
    requests = [asker.ask(max_tokens=2 + 9 * (number % 4), ignore_eos=True) for number in range(10)]
    feed = Feed(requests)
    answers = by_id(feed.answers(stamped_engine))
    assert len(answers) == 10 and feed.most == 4
    batches = [[answers[request.request_id] for request in requests[i : i + 4]] for i in (0, 4, 8)]
    for before, after in pairwise(batches):
        assert max(row.finished_at_s or 0 for row in before) <= min(row.arrived_at_s or 0 for row in after)
    assert {row.window_requests for row in answers.values()} == {4}


def test_a_barrier_reads_no_further_than_its_batch(stamped_engine: OfflineEngine, asker: Asker) -> None:
    feed = Feed(asker.ask(max_tokens=1) for _ in range(10))
    answers = feed.answers(stamped_engine)
    next(answers)
    assert feed.given == 4
    assert len(list(answers)) == 9


def test_a_batch_of_bad_requests_does_not_end_the_barrier(stamped_engine: OfflineEngine, asker: Asker) -> None:
    """Peers, row 8."""
    answers = list(stamped_engine.generate([*(asker.send([]) for _ in range(6)), asker.ask()]))
    assert [answer.error_kind for answer in answers].count(None) == 1 and len(answers) == 7
