"""Engines that are opened otherwise than most, and how the processes of an engine end: nothing of them is left.

One has token times, barrier mode, small steps and compact JSON; the other one a model that thinks. The tiny model does
not think. What it writes has a beginning and an end, though, and a character of it can be the tag.
"""

import itertools
import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from engine_kit import (
    ARGS,
    SCHEMA,
    Control,
    CountedRequests,
    Kept,
    answer_seeded,
    answers_in,
    by_id,
    check_same,
    living_members,
    open_engine,
    prepare_options,
    stamps_of,
)

from assayline.engines import client
from assayline.engines.client import OfflineEngine
from assayline.engines.process import HostProcess
from assayline.errors import EngineError, SpecError
from assayline.records import Request
from assayline.spec.engine import ReasoningSpec
from assayline.store.database import connect
from assayline.store.ingest import load_parts
from assayline.store.parts import write_part

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def stamped(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept[OfflineEngine]]:
    """Barrier mode with batches of four, and a stamp per token; steps of 32 tokens, so that prompts come in pieces;
    and JSON without blanks: the tiny model writes them until its tokens are used up."""
    log = tmp_path_factory.mktemp("stamped") / "engine.log"
    forms = {"backend": "xgrammar", "disable_any_whitespace": True}
    steps = {"max_num_batched_tokens": 32, "enable_chunked_prefill": True}
    args = {**ARGS, **steps, "structured_outputs_config": forms}
    options = {"mode": "barrier", "window": 4, "record_token_times": True, "args": args}
    with closing(Kept(lambda: open_engine(tiny_model, log, **options))) as kept:
        yield kept


@pytest.fixture
def stamped_engine(stamped: Kept[OfflineEngine]) -> OfflineEngine:
    return stamped.engine


PARSER = """
from vllm.reasoning.abs_reasoning_parsers import ReasoningParserManager
from vllm.reasoning.basic_parsers import BaseThinkingReasoningParser


class TinyParser(BaseThinkingReasoningParser):
    start_token = "<|assistant|>"
    end_token = "1"


ReasoningParserManager.register_module("tiny", module=TinyParser)
"""


@pytest.fixture(scope="module")
def thinker_control() -> Control:
    return Control()


@pytest.fixture(scope="module")
def thinking(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory, thinker_control: Control
) -> Iterator[Kept[OfflineEngine]]:
    """The tiny model answers 9 + 4 with 13: of that, 1 is the tag that closes the thinking, and 3 is the answer."""
    folder = tmp_path_factory.mktemp("thinking")
    (folder / "tiny_parser.py").write_text(PARSER)
    parser = {"reasoning_parser": "tiny", "reasoning_parser_plugin": str(folder / "tiny_parser.py")}
    options = {"args": {**ARGS, "structured_outputs_config": parser}, "reasoning": ReasoningSpec(close="1")}
    with closing(
        Kept(lambda: open_engine(tiny_model, folder / "log" / "engine.log", thinker_control, **options))
    ) as kept:
        yield kept


@pytest.fixture
def thinker(thinking: Kept[OfflineEngine]) -> OfflineEngine:
    return thinking.engine


def test_every_token_has_its_stamp(stamped_engine, asker):
    """Two-token outputs have a gap, one-token outputs a first token."""
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


def test_one_token_has_a_time_to_first_token_and_no_time_per_token(stamped_engine, asker, tmp_path):
    """Undefined values are NULL, not 0."""
    requests = [asker.ask(max_tokens=1), asker.ask(max_tokens=2, ignore_eos=True)]
    write_part(tmp_path, "requests", "x", requests)
    write_part(tmp_path, "completions", "x", list(stamped_engine.generate(requests)))
    with connect(tmp_path / "test.duckdb", 0) as connection:
        load_parts(connection, "run", tmp_path)
        query = "select output_tokens, ttft_s > 0, tpot_s > 0 from stg_requests order by output_tokens"
        assert connection.execute(query).fetchall() == [(1, True, None), (2, True, True)]
        assert connection.execute(
            "select sum(len(token_at_s) - 1) from answer where len(token_at_s) > 1"
        ).fetchall() == [(1,)]


def test_stamps_change_nothing_else(stamped_engine, engine, asker):
    """Streamed or not, texts, ids, reasons and log-probabilities are kept whole."""
    asked: list[dict[str, Any]] = [
        {"logprobs": 2, "prompt_logprobs": 1},
        {"stop": ["3"]},
        {"stop": ["3"], "include_stop_str_in_output": True},
        {"max_tokens": 9, "ignore_eos": True, "logprobs": 0},
    ]
    check_same(stamped_engine, engine, [asker.ask("What is 9 + 4?", **sampling) for sampling in asked])


def test_a_barrier_waits_for_the_slowest_and_flushes_the_remainder(stamped_engine, asker):
    requests = [asker.ask(max_tokens=2 + 9 * (number % 4), ignore_eos=True) for number in range(10)]
    counted = CountedRequests(requests)
    answers = by_id(counted.answers(stamped_engine))
    assert len(answers) == 10 and counted.most == 4
    batches = [[answers[request.request_id] for request in requests[i : i + 4]] for i in (0, 4, 8)]
    for before, after in pairwise(batches):
        assert max(row.finished_at_s or 0 for row in before) <= min(row.arrived_at_s or 0 for row in after)
    assert {row.window_requests for row in answers.values()} == {4}


def test_a_barrier_reads_no_further_than_its_batch(stamped_engine, asker):
    counted = CountedRequests(asker.ask(max_tokens=1) for _ in range(10))
    answers = counted.answers(stamped_engine)
    next(answers)
    assert counted.given == 4
    assert len(list(answers)) == 9


def test_a_batch_of_bad_requests_does_not_end_the_barrier(stamped_engine, asker):
    answers = list(stamped_engine.generate([*(asker.send([]) for _ in range(6)), asker.ask()]))
    assert [answer.error_kind for answer in answers].count(None) == 1 and len(answers) == 7


def test_a_prompt_in_several_steps_has_the_same_sum(stamped_engine, asker, reference):
    rows = [{"prompt": "What is 3 + 4? " * 12, "choices": ["7", "What is 8 + 1? " * 6]}]
    [prompt] = prepare_options(asker, rows)
    assert min(len(request.prompt_token_ids) for request in prompt.ready) > 64
    answers = by_id(stamped_engine.generate(prompt.ready))
    for request in prompt.ready:
        expected = reference.option_logprob(request)
        assert answers[request.request_id].option_logprob == pytest.approx(expected, abs=2e-3, rel=1e-3)
        assert len(answers[request.request_id].token_at_s or []) == answers[request.request_id].output_tokens


def test_a_seeded_answer_is_the_same_if_its_prompt_is_read_in_steps(stamped_engine, engine):
    found = [answer_seeded(one, *seeds) for one in (stamped_engine, engine) for seeds in (range(4), range(3, -1, -1))]
    assert all(one == found[0] for one in found) and len(set(map(tuple, found[0].values()))) > 1, "seeds differ"


def test_every_answer_is_json_of_the_schema(stamped_engine, asker):
    answers = answers_in(stamped_engine, asker, {"json_schema": SCHEMA})
    for answer in answers:
        assert answer.finish_reason == "stop"
        jsonschema.validate(json.loads(str(answer.text)), SCHEMA)
    assert len({answer.text for answer in answers}) > 3


def test_thinking_is_kept_apart(thinker, asker):
    questions = [asker.ask("What is 9 + 4?"), asker.ask("What is 3 + 4?"), asker.ask("What is 9 + 2?")]
    answers = by_id(thinker.generate(questions))
    split = [(answers[one.request_id].reasoning, answers[one.request_id].text) for one in questions]
    assert split == [("", "3"), ("7", ""), ("", "1")]
    assert all(answer.finish_reason == "stop" and answer.output_tokens for answer in answers.values())


def test_a_stop_does_not_fire_in_the_thinking_and_does_in_the_answer(thinker, engine, asker):
    """A long text of the model's own making, with the tag in its middle and the stop on both sides of that."""
    end, unended = "<|end|>", {"ignore_eos": True, "max_tokens": 100, "skip_special_tokens": False}
    asked = [asker.ask(row["question"], **unended) for row in asker.rows[:40]]
    written = by_id(engine.generate(asked))

    def has_stops(request: Request) -> bool:
        before, _, after = str(written[request.request_id].text).partition("1")
        return end in before and end in after

    question = next(request for request in asked if has_stops(request))
    plain = written[question.request_id]
    reasoning, _, answer = str(plain.text).partition("1")
    answer, first = answer.lstrip(), reasoning[0]
    ids = question.prompt_token_ids
    inside = asker.send(ids, stop=[first], **unended)
    after = asker.send(ids, stop=[end], logprobs=0, **unended)
    kept = asker.send(ids, stop=end, include_stop_str_in_output=True, **unended)
    late = asker.send(ids, stop=end, min_tokens=90, **unended)
    answers = by_id(thinker.generate([inside, after, kept, late]))
    whole = answers[inside.request_id]
    assert whole.reasoning == reasoning.strip()
    assert (whole.text, whole.stop_reason) == (answer.partition(first)[0], first if first in answer else None)
    stopped = answers[after.request_id]
    assert (stopped.reasoning, stopped.text) == (reasoning.strip(), answer.partition(end)[0])
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", end)
    assert stopped.output_tokens == len(stopped.output_token_ids or []) == len(stopped.logprobs)
    assert stopped.output_tokens < 100 and stopped.cumulative_logprob is not None
    assert stopped.output_token_ids == (plain.output_token_ids or [])[: stopped.output_tokens]
    assert answers[kept.request_id].text == f"{stopped.text}{end}"
    assert (answers[late.request_id].output_tokens or 0) >= 90
    for one in answers.values():
        assert one.finished_at_s and one.last_token_at_s and one.finished_at_s >= one.last_token_at_s


def test_a_prompt_that_closed_the_thinking_is_answered(thinker, asker):
    closed = replace(asker.ask("What is 9 + 4?"), rendered="<|assistant|> 1\n")
    [answer] = thinker.generate([closed])
    assert (answer.reasoning, answer.text) == (None, "13")


def test_the_engine_is_free_after_a_stop(thinker, asker):
    requests = [asker.ask("What is 9 + 4?", stop=["3"], ignore_eos=True, max_tokens=200) for _ in range(30)]
    answers = by_id(thinker.generate(requests))
    assert len(answers) == 30 and {answer.text for answer in answers.values()} == {""}
    assert max(answer.output_tokens or 0 for answer in answers.values()) == 2
    [plain] = thinker.generate([asker.ask("What is 3 + 4?")])
    assert plain.reasoning == "7"


def test_with_vllms_parser_the_thinking_is_free_and_the_answer_is_not(thinker, asker):
    [answer] = thinker.generate([asker.ask("What is 9 + 4?", structured_outputs={"choice": ["cat", "dog"]})])
    assert answer.error_kind is None, answer.error_message
    assert (answer.reasoning, answer.text in ("cat", "dog")) == ("", True)


def test_an_exception_leaves_no_process(thinking, thinker_control, asker):
    """Their engines were alive 29 minutes later."""
    with pytest.raises(KeyError), closing(thinking.take()) as engine:
        assert os.getsid(engine.host_pid) == engine.host_pid != os.getsid(0)
        assert living_members(engine.host_pid)
        for _ in engine.generate(asker.ask(max_tokens=99, ignore_eos=True) for _ in range(20)):
            raise KeyError
    assert living_members(engine.host_pid) == []
    engine.close()
    assert engine._setup.log_path.read_text().splitlines()[0].strip() in thinker_control.lines


def test_a_killed_host_is_an_error_with_the_signals_name_after_what_had_finished(stamped, asker):
    """Plain `LLM` waits forever. Long requests without an end, so that some are unanswered whenever it is killed."""
    seen = []
    with closing(stamped.take()) as engine:
        short = [asker.ask() for _ in range(5)]
        long = (asker.ask(max_tokens=None, ignore_eos=True) for _ in itertools.count())
        with pytest.raises(EngineError, match=r"(?s)died of signal SIGKILL.*engine\.log") as caught:
            for answer in engine.generate(itertools.chain(short, long)):
                seen.append(answer.text)
                if len(seen) == 5:
                    os.kill(engine.host_pid, signal.SIGKILL)
        assert seen[:5] == ["7"] * 5
        assert "Traceback" not in str(caught.value).splitlines()[0]
        with pytest.raises(EngineError, match="died of signal SIGKILL"):
            list(engine.generate([asker.ask()]))
    assert living_members(engine.host_pid) == []


def test_a_model_that_does_not_load_is_an_error_of_the_spec_and_leaves_no_process(tmp_path, monkeypatch):
    empty = tmp_path / "empty"
    empty.mkdir()
    hosts: list[HostProcess] = []

    class Watched(HostProcess):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            hosts.append(self)

    monkeypatch.setattr(client, "HostProcess", Watched)
    with pytest.raises(SpecError, match=r"vLLM rejects the model or its engine\.args: Invalid repository ID"):
        open_engine(empty, tmp_path / "engine.log", args=ARGS)
    assert "Traceback" in (tmp_path / "engine.log").read_text()
    assert living_members(hosts[0].pid) == []
