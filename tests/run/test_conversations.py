"""Conversations sent turn by turn: answers are in the next prompt, even after crashes in between."""

import json
from collections.abc import Callable
from functools import partial
from itertools import groupby
from typing import Any

import pytest
from run_kit import FAKE, complete, plain_request, query, rows_of, vanish, work
from server_kit import ANSWER, FakeServer

from assayline.digests import digest_text
from assayline.engines.fake import FakeEngine
from assayline.errors import EngineError, SpecError
from assayline.export.make import export_run
from assayline.model import identify_spec_model
from assayline.records import EARLIER_TURN, EarlierTurn, Request
from assayline.run import drive
from assayline.run.begin import begin_evaluation
from assayline.run.order import Conversations
from assayline.run.prepare import open_renderer
from assayline.run.worker import Worker, WorkOrder
from assayline.settings import Settings
from assayline.spec.evaluation import EvalSpec

TURNS = [1, 3, 2, 5, 1, 4]
"""Of the conversations that are asked."""
SYSTEM = {"role": "system", "content": "Be brief."}


def conversation(number: int, turns: int) -> dict[str, Any]:
    said = [SYSTEM]
    for turn in range(turns):
        said += [{"role": "user", "content": f"question {number}.{turn}"}, {"role": "assistant", "content": "recorded"}]
    return {"id": str(number), "messages": said, "answer": f"target {number}"}


def answer(request: Request) -> str:
    """Another one for every prompt: it shows what the prompt was."""
    return digest_text(request.rendered or "")[:12]


def answering(**changes: Any) -> Callable[[WorkOrder], Worker]:
    """Launches workers whose engines answer with a digest of their prompts, unless told otherwise."""

    def open_fake(order: Any, window: Any, setup: Any, hooks: Any, **_: Any) -> FakeEngine:
        return FakeEngine(order, hooks, **{"window": 3, "answer": answer, **changes})

    return partial(Worker, open_engine=open_fake)


@pytest.fixture
def conversations_spec(make_spec: Any) -> Callable[..., EvalSpec]:
    def make(turns: list[int] = TURNS, **changes: Any) -> EvalSpec:
        rows = [conversation(number, count) for number, count in enumerate(turns)]
        source = {"kind": "inline", "rows": rows}
        prompts = {"source": source, "template": None, "turns": "each", **changes.pop("prompts", {})}
        return make_spec(prompts=prompts, engine={**FAKE, "args": {}}, sampling={"max_tokens": 2}, **changes)

    return make


def check_history(spec: EvalSpec, settings: Settings) -> int:
    """Every answer is to the prompt that the answers stored before it make, once. Returns how many there are."""
    renderer = open_renderer(spec, identify_spec_model(spec))
    rows = query(
        settings,
        "select prompt_id, occurrence, repeat_index, turn_index, turns, turn_messages_json, text, prompt_tokens "
        "from requests left join completions using (run_id, request_id) order by 1, 2, 3, 4",
    )
    for _, turns in groupby(rows, key=lambda row: row[:3]):
        said: list[Any] = []
        asked = list(turns)
        assert [row[3] for row in asked] == list(range(asked[0][4])), "each turn has one row"
        for *_, messages, text, prompt_tokens in asked:
            said += json.loads(messages)
            rendered = renderer.render(said)
            assert (text, prompt_tokens) == (digest_text(rendered.text)[:12], len(rendered.token_ids))
            said.append({"role": "assistant", "content": text})
    return len(rows)


def test_each_turn_is_asked_with_the_answers_of_the_model(settings, conversations_spec):
    spec = conversations_spec(prompts={"repeats": 2}, shard_requests=4)
    assert complete(spec, settings, launch=answering()).answered_requests == 2 * sum(TURNS)
    assert check_history(spec, settings) == 2 * sum(TURNS)
    assert query(settings, "select is_sound from request_integrity") == [(True,)]


class Killed(Exception):
    """Raised to end a worker in the middle of a test."""


def die_after(answers: int) -> Callable[[Request], str]:
    left = iter(range(answers))

    def answer_or_die(request: Request) -> str:
        if next(left, None) is None:
            raise Killed
        return answer(request)

    return answer_or_die


def test_a_run_that_was_killed_between_turns_goes_on_with_what_was_answered(settings, conversations_spec, monkeypatch):
    monkeypatch.setattr(drive, "REPLACEMENT_PAUSES_S", ())
    answers = 7
    spec = conversations_spec(shard_requests=5)
    evaluation = begin_evaluation(spec, settings)
    evaluation.prepare()
    with pytest.raises(EngineError, match="was lost 1 times"):
        work(evaluation, launch=answering(answer=die_after(answers)))
    evaluation.writer.flush()
    early = {row["request_id"]: row["text"] for row in rows_of(evaluation.run_dir, "completions")}
    assert len(early) == answers
    vanish(evaluation)
    assert complete(spec, settings, launch=answering()).run_id == evaluation.run_id
    assert check_history(spec, settings) == sum(TURNS)
    rows = rows_of(evaluation.run_dir, "completions")
    assert len(rows) == sum(TURNS), "nothing is asked twice"
    assert early.items() <= {row["request_id"]: row["text"] for row in rows}.items()


def test_a_turn_without_an_answer_ends_its_conversation_and_no_other(settings, conversations_spec):
    spec = conversations_spec(
        prompts={"columns": {"target": "answer"}}, scorers=[{"kind": "contains"}], max_error_share=1
    )
    evaluation = begin_evaluation(spec, settings)
    counts = evaluation.prepare()
    requests = rows_of(evaluation.run_dir, "requests")
    [failing] = [row for row in requests if row["turns"] == 5 and row["turn_index"] == 1]
    work(evaluation, launch=answering(fail_ids=frozenset({failing["request_id"]})))
    evaluation.finish(counts)
    rows = query(
        settings,
        "select turn_index, error_kind, error_message from requests join completions using (run_id, request_id) "
        "where turns = 5 order by 1",
    )
    assert [kind for _, kind, _ in rows] == [None, "fake_error", *[EARLIER_TURN] * 3]
    assert rows[-1][2] == "Not sent, because turn 2 of 5 of the conversation has no answer: asked to fail"
    assert query(settings, "select count(*) from completions where error_kind is null") == [(sum(TURNS) - 4,)]
    scores = query(settings, "select value, explanation from scores")
    assert len(scores) == len(TURNS), "one score a conversation, of its last turn"
    assert (0.0, f"error: {EARLIER_TURN}") in scores
    with pytest.raises(SpecError, match="has conversations sent turn by turn, and lm-eval has one question"):
        export_run(settings, evaluation.run_id, "lm-eval")


def test_a_conversation_that_grows_beyond_the_context_ends_there(settings, conversations_spec):
    spec = conversations_spec(turns=[6], max_error_share=1)
    spec = spec.model_copy(update={"engine": spec.engine.model_copy(update={"args": {"max_model_len": 100}})})
    complete(spec, settings, launch=answering())
    rows = query(settings, "select error_kind, prompt_tokens from completions order by prompt_tokens nulls last")
    kinds = [kind for kind, _ in rows]
    assert kinds == sorted(kinds, key=[None, "prompt_too_long", EARLIER_TURN].index) and set(kinds) >= {EARLIER_TURN}
    too_long = kinds.index("prompt_too_long")
    assert rows[too_long][1] >= 100 > rows[too_long - 1][1]


def test_a_conversation_that_cannot_begin_has_an_error_row_for_each_turn(settings, conversations_spec):
    spec = conversations_spec(turns=[2, 1], max_error_share=1)
    spec = spec.model_copy(update={"engine": spec.engine.model_copy(update={"args": {"max_model_len": 5}})})
    evaluation = begin_evaluation(spec, settings)
    counts = evaluation.prepare()
    assert (counts.requests, counts.failed_requests) == (3, 3)
    evaluation.abandon("cancelled")
    assert {row["turn_messages_json"] for row in rows_of(evaluation.run_dir, "requests")} == {None}


def test_a_turn_whose_earlier_answer_is_nowhere_is_an_error_row_and_no_wait():
    failed: list[tuple[str, str]] = []
    conversations = Conversations(
        lambda: pytest.fail("nothing is rendered"),
        "",
        lambda request, kind, *_: failed.append((request.request_id, kind)),
    )
    earlier = [EarlierTurn([{"role": "user", "content": "first"}], "yes"), EarlierTurn([])]
    turn = plain_request("third", prompt_token_ids=[], turn_index=2, turns=3, turn_messages=[], earlier_turns=earlier)
    assert conversations.add(turn) is None and not conversations.held
    assert failed == [("third", EARLIER_TURN)]


def test_a_server_gets_the_conversation_as_messages(settings, make_spec):
    rows = [conversation(number, 3) for number in range(2)]
    server_spec = {"endpoint": "chat"}
    with FakeServer().running() as server:
        spec = make_spec(
            prompts={"source": {"kind": "inline", "rows": rows}, "template": None, "columns": {}, "turns": "each"},
            engine={"backend": "server", "server": {**server_spec, "url": server.url}, "args": {}, "warmup": False},
            load={"arrival": {"kind": "concurrency", "requests": 1}, "max_requests": 5},
        )
        assert complete(spec, settings).answered_requests == 6
        asked = [one.body["messages"] for one in server.received if one.path.endswith("/chat/completions")]
    answered = {"role": "assistant", "content": "".join(ANSWER)}
    for number in range(2):
        first, second, third = ({"role": "user", "content": f"question {number}.{turn}"} for turn in range(3))
        assert [messages for messages in asked if messages[1] == first] == [
            [SYSTEM, first],
            [SYSTEM, first, answered, second],
            [SYSTEM, first, answered, second, answered, third],
        ][: 3 - number]
    assert query(settings, "select status, count(*) from stg_requests group by 1 order by 1") == [
        ("ok", 5),
        ("unsent", 1),
    ]


@pytest.mark.rare
@pytest.mark.vllm
def test_a_real_engine_finds_the_turn_before_in_its_cache(settings, make_spec):
    """Each begins with more than a block of the cache, and its second turn with what the model itself said."""
    long = {"role": "system", "content": " ".join(f"{number} + {number} = {2 * number}." for number in range(20))}
    rows = [
        {**conversation(number, 3), "messages": [long, *conversation(number, 3)["messages"][1:]]} for number in range(2)
    ]
    spec = make_spec(
        prompts={"source": {"kind": "inline", "rows": rows}, "template": None, "columns": {}, "turns": "each"},
        sampling={"max_tokens": 8},
        engine={"args": {**make_spec().engine.args, "max_model_len": 512, "block_size": 128}},
    )
    complete(spec, settings)
    renderer = open_renderer(spec, identify_spec_model(spec))
    rows = query(
        settings,
        "select prompt_id, turn_index, turn_messages_json, text, prompt_tokens, cached_tokens, error_message "
        "from requests join completions using (run_id, request_id) order by 1, 2",
    )
    said: list[Any] = []
    for _, turn_index, messages, text, prompt_tokens, cached_tokens, error_message in rows:
        assert error_message is None
        said = (said if turn_index else []) + json.loads(messages)
        assert prompt_tokens == len(renderer.render(said).token_ids)
        if turn_index:
            assert cached_tokens >= 128
        said.append({"role": "assistant", "content": text})
    [(second,)] = query(settings, "select sum(cached_tokens) / sum(prompt_tokens) from request where turn_index = 1")
    assert second > 0.4
