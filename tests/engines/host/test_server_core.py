"""ServerCore against a server that answers, and one that fails in every way it can."""

import asyncio
import email.utils
import itertools
import json
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from engine_kit import with_core
from hypothesis import given
from hypothesis import strategies as st
from run_kit import PATIENCE_S, plain_request
from server_kit import ANSWER, FakeServer, Script

from assayline.clock import RunClock
from assayline.engines.host.core import EngineGoneError
from assayline.engines.host.server import client as served_client
from assayline.engines.host.server import core
from assayline.engines.host.server.core import ServerCore
from assayline.engines.host.server.stream import EventReader, MalformedStreamError, ServedAnswer
from assayline.engines.messages import Generate, Open, Opened
from assayline.errors import ServerError, SpecError
from assayline.records import Completion, Request
from assayline.spec.engine import EngineSpec, ReasoningSpec, ServerSpec
from assayline.store.parts import to_arrow

pytestmark = pytest.mark.slow

GREEDY = {"temperature": 0, "max_tokens": 8}
LIMITS = ("max_tokens", "max_completion_tokens")


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_client, "FIRST_WAIT_S", 0.02)


@pytest.fixture
def plain_server() -> Iterator[FakeServer]:
    """One that is not vLLM."""
    with FakeServer(is_vllm=False).running() as running:
        yield running


def make_order(
    url: str | None, reasoning: ReasoningSpec | None = None, chat_kwargs: Any = None, **changes: Any
) -> Open:
    sampling = changes.pop("sampling", GREEDY)
    return Open(
        engine=EngineSpec(backend="server", server=ServerSpec(url=url, **changes)),
        model="fake-model",
        sampling=sampling,
        reasoning=reasoning,
        chat_kwargs=chat_kwargs or {},
        clock=RunClock.start(),
    )


def make_request(number: int = 0, **sampling: Any) -> Request:
    return plain_request(f"request-{number}", prompt_token_ids=[1, 2, 3], sampling={**GREEDY, **sampling})


def make_chat(number: int = 0, **sampling: Any) -> Request:
    messages = [{"role": "user", "content": "Count to four."}]
    return plain_request(f"request-{number}", prompt_token_ids=[], sampling={**GREEDY, **sampling}, messages=messages)


def open_only(order: Open) -> Opened:
    return with_core(order, lambda core: asyncio.sleep(0, core._opened))


def ask(
    order: Open, *requests: Request, before: Callable[[], Any] = lambda: None, window: int | None = None
) -> list[Completion]:
    """Asks everything at once."""

    async def act(core: ServerCore) -> list[Completion]:
        before()
        return await asyncio.gather(*(core.answer(Generate(request, 0.0, window, 1.5)) for request in requests))

    return with_core(order, act)


def test_an_answer_with_token_ids_has_everything(server):
    [answer] = ask(make_order(server.url), make_request())
    assert answer.error_kind is None and answer.finish_reason == "stop"
    assert answer.text == "One two three four" and answer.output_token_ids == [100, 101, 102, 103]
    assert (answer.prompt_tokens, answer.cached_tokens, answer.output_tokens, answer.retries) == (3, 2, 4, 0)
    stamps = answer.token_at_s
    assert len(stamps) == 4 and stamps == sorted(stamps)
    assert (answer.first_token_at_s, answer.last_token_at_s) == (stamps[0], stamps[-1])
    assert answer.sent_at_s == answer.arrived_at_s and answer.queued_at_s is None and answer.scheduled_at_s is None
    assert answer.sent_at_s < answer.first_token_at_s <= answer.last_token_at_s <= answer.finished_at_s
    assert answer.window_requests is None and answer.due_at_s == 1.5


def test_the_body_says_all_that_vllm_would_else_choose(server):
    ask(make_order(server.url), make_request(seed=-1, min_tokens=2, n=1, stop=None))
    body = server.received[0].body
    assert body == {
        "model": "fake-model", "prompt": [1, 2, 3], "stream": True, "stream_options": {"include_usage": True},
        "return_token_ids": True, "temperature": 0, "max_tokens": 8, "min_tokens": 2, "top_p": 1.0, "top_k": 0,
        "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
    }  # fmt: skip


def test_a_server_that_is_not_vllm_gets_openai_alone(plain_server):
    [answer] = ask(make_order(plain_server.url), make_request(stop=["."], seed=7))
    assert set(plain_server.received[0].body) == {
        "model", "prompt", "stream", "stream_options", "temperature", "max_tokens", "stop", "seed",
    }  # fmt: skip
    assert answer.text == "One two three four" and answer.output_token_ids is None and answer.output_tokens == 4
    assert answer.token_at_s is not None and len(answer.token_at_s) == 4  # as many events as tokens


def test_events_of_several_tokens_have_no_stamp_per_token_unless_ids_count_them(server, plain_server):
    server.default = plain_server.default = Script(tokens_per_event=2)
    [counted], [uncounted] = (ask(make_order(one.url), make_request()) for one in (server, plain_server))
    first, second, third, fourth = counted.token_at_s
    assert first == second <= third == fourth
    assert uncounted.token_at_s is None and uncounted.output_tokens == 4
    assert uncounted.first_token_at_s and uncounted.last_token_at_s


def test_missing_usage_of_a_server_is_unknown(plain_server):
    plain_server.default = Script(has_usage=False)
    [answer] = ask(make_order(plain_server.url), make_request())
    assert answer.output_tokens is None and answer.cached_tokens is None and answer.token_at_s is None
    assert answer.prompt_tokens == 3  # as many as were sent


def test_chat_sends_messages_and_leaves_the_room_to_the_server(server):
    order = make_order(server.url, endpoint="chat", chat_kwargs={"enable_thinking": False})
    [answer] = ask(order, make_chat(max_tokens=None))
    body = server.received[0].body
    assert body["messages"] == [{"role": "user", "content": "Count to four."}]
    assert "max_tokens" not in body and "prompt" not in body
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert answer.text == "One two three four" and answer.prompt_tokens == 3
    assert answer.token_at_s is not None and len(answer.token_at_s) == 4  # the role's empty event is not a token


NEWER = Script(status=400, message="'max_tokens' is not supported. Use 'max_completion_tokens' instead.")


def test_max_tokens_has_the_name_that_the_server_asks_for(plain_server):
    def list_limits() -> list[Any]:
        return [[received.body.get(name) for name in LIMITS] for received in plain_server.received]

    plain_server.scripts += [NEWER, NEWER]
    answers = ask(make_order(plain_server.url, endpoint="chat"), make_chat(0), make_chat(1))
    assert [(answer.error_kind, answer.retries) for answer in answers] == [(None, 0)] * 2
    assert sorted(list_limits(), key=str) == [[8, None]] * 2 + [[None, 8]] * 2


def test_max_tokens_unset_is_the_room_in_the_context_or_ends_the_run_where_that_is_unknown(server, plain_server):
    ask(make_order(server.url), make_request(max_tokens=None))
    assert server.received[0].body["max_tokens"] == 128 - 3
    with pytest.raises(SpecError, match=r"hint: set sampling\.max_tokens"):
        ask(make_order(plain_server.url), make_request(max_tokens=None))
    assert not plain_server.received


def test_reasoning_is_separated_by_server_or_client(server):
    server.scripts += [Script(thoughts=("Hm.", " Well.")), Script(tokens=("<think>", "Hm.", "</think>", "\n\nFour"))]
    chat = make_order(server.url, ReasoningSpec(), endpoint="chat")
    [by_server], [by_us] = ask(chat, make_chat()), ask(chat, make_chat())
    assert (by_server.reasoning, by_server.text) == ("Hm. Well.", "One two three four")
    assert (by_us.reasoning, by_us.text) == ("Hm.", "Four")


def test_a_stop_with_reasoning_needs_the_engine_itself(server):
    [answer] = ask(make_order(server.url, ReasoningSpec()), make_request(stop=["."]))
    assert answer.error_kind == "sampling_error" and "offline or async" in str(answer.error_message)


@pytest.mark.parametrize("name", ["top_k", "structured_outputs", "ignore_eos"])
def test_parameters_beyond_openai_are_refused_by_name(plain_server, name):
    value = {"json": {}} if name == "structured_outputs" else 1
    words = "structured_outputs" if name == "structured_outputs" else name
    with pytest.raises(SpecError, match=words):
        open_only(make_order(plain_server.url, sampling={**GREEDY, name: value}))
    [answer] = ask(make_order(plain_server.url), make_request(**{name: value}))
    assert answer.error_kind == "sampling_error" and words in str(answer.error_message)


def test_a_json_schema_is_a_response_format_for_others(plain_server):
    schema = {"type": "object"}
    ask(make_order(plain_server.url, endpoint="chat"), make_chat(structured_outputs={"json": schema}))
    assert plain_server.received[0].body["response_format"]["json_schema"]["schema"] == schema


def test_server_core_rejects_options_that_need_an_engine(server):
    for sampling in ({"detokenize": False}, {"prompt_logprobs": 1}):
        with pytest.raises(SpecError, match=f"{next(iter(sampling))} cannot be used over HTTP"):
            open_only(make_order(server.url, sampling=sampling, endpoint="chat"))


def test_a_stored_answer_is_read_in_one_piece(server):
    """vLLM streams no log-probabilities of a prompt. Those of the answer's tokens are kept, here of the last two."""
    places = [None, *({f"{token}": {"logprob": -token / 4, "rank": 2}, "7": {"logprob": -0.5}} for token in (2, 3))]
    server.scripts.extend([Script(prompt_logprobs=places), Script(prompt_logprobs=places[:1]), Script()])
    reading = replace(make_request(prompt_logprobs=20), option_tokens=2)
    [answer] = ask(make_order(server.url, sampling=reading.sampling), reading)
    assert answer.prompt_logprobs == [{"2": -0.5, "7": -0.5}, {"3": -0.75, "7": -0.5}]
    assert (answer.option_logprob, answer.text, answer.error_kind) == (-1.25, None, None)
    body = server.received[0].body
    assert body["prompt"] == [1, 2, 3] and body["prompt_logprobs"] == 20 and "stream" not in body
    for _ in range(2):
        [answer] = ask(make_order(server.url), reading)
        assert answer.error_kind == "malformed_stream" and "left out log-probabilities" in answer.error_message


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_logprobs_are_by_token_id(server, endpoint):
    chosen, other = {"token": "token_id:5", "logprob": -0.5}, {"token": "token_id:6", "logprob": -1.0}
    server.default = Script(tokens=("One",), logprobs={
        "completions": {"tokens": ["token_id:5"], "token_logprobs": [-0.5],
                        "top_logprobs": [{"token_id:5": -0.5, "token_id:6": -1.0}]},
        "chat": {"content": [{**chosen, "top_logprobs": [chosen, other]}]},
    }[endpoint])  # fmt: skip
    request = make_request(logprobs=2) if endpoint == "completions" else make_chat(logprobs=2)
    [answer] = ask(make_order(server.url, endpoint=endpoint), request)
    assert answer.logprobs == [{"5": -0.5, "6": -1.0}] and answer.cumulative_logprob == -0.5
    body = server.received[0].body
    assert body["return_tokens_as_token_ids"] is True
    assert body["logprobs"] == (2 if endpoint == "completions" else True)


@pytest.mark.parametrize(
    "script",
    [Script(status=429), Script(status=503), Script(reset=True), Script(break_after=0)],
    ids=["429", "503", "reset", "cut before a token"],
)
def test_transient_errors_are_retried_and_timed_from_the_first_attempt(server, script):
    server.scripts += [script, script]
    [answer] = ask(make_order(server.url), make_request())
    assert answer.error_kind is None and answer.retries == 2 and answer.output_tokens == 4
    assert len(server.received) == 3
    assert answer.sent_at_s is not None and answer.first_token_at_s is not None
    assert answer.first_token_at_s - answer.sent_at_s >= 0.5 * 0.02 + 0.5 * 0.04  # both waits are in it


@pytest.mark.parametrize(
    ("script", "kind"), [(Script(status=429), "server_overloaded"), (Script(reset=True), "server_unreachable")]
)
def test_permanent_errors_become_error_rows(server, script, kind):
    server.default = script
    [answer] = ask(make_order(server.url, retries=3), make_request())
    assert answer.error_kind == kind and answer.retries == 3 and len(server.received) == 4
    assert "after 3 retries" in str(answer.error_message)
    assert answer.finish_reason is None and answer.text is None and answer.first_token_at_s is None


class Soon:
    """A date of whole seconds, at least one second after the moment in which it is written."""

    def __str__(self) -> str:
        return email.utils.formatdate(time.time() + 2, usegmt=True)


@pytest.mark.parametrize("value", ["1", Soon()], ids=["seconds", "date"])
def test_retry_after_is_respected(server, value):
    server.scripts.append(Script(status=503, headers={"Retry-After": value}))
    [answer] = ask(make_order(server.url), make_request())
    assert answer.retries == 1 and answer.first_token_at_s is not None and answer.sent_at_s is not None
    assert answer.first_token_at_s - answer.sent_at_s > 0.9


def test_a_wait_beyond_the_time_limit_is_not_begun(server):
    server.default = Script(status=429, headers={"Retry-After": "3600"})
    [answer] = ask(make_order(server.url, timeout_s=30), make_request())
    assert answer.error_kind == "server_overloaded" and answer.retries == 0


def test_a_refusal_is_a_row_with_the_servers_words(server):
    server.scripts.append(Script(status=400, message="The prompt is too long."))
    answers = ask(make_order(server.url), make_request(0), make_request(1))
    errors = [answer for answer in answers if answer.error_kind]
    assert len(errors) == 1 and errors[0].error_kind == "rejected_by_server" and errors[0].retries == 0
    assert errors[0].error_message == "The server answered 400: The prompt is too long."


@pytest.mark.parametrize(("script", "kind", "words"), [
    (Script(break_after=2), "stream_cut", "after 2 tokens"),
    (Script(break_after=2, break_with="end"), "stream_cut", "after 2 tokens"),
    (Script(break_after=2, break_with="{'no': json"), "malformed_stream", "not JSON"),
    (Script(break_after=2, break_with="[1]"), "malformed_stream", "not an object"),
    (Script(break_after=2, break_with='{"choices": [{"token_ids": 3}]}'), "malformed_stream",
     "not belong to a completion"),
    (Script(break_after=2, break_with='{"choices": "abc"}'), "malformed_stream", "not belong to a completion"),
    (Script(break_after=2, break_with='{"error": {"message": "CUDA went away", "code": 500}}'), "server_error",
     "CUDA went away"),
    (Script(break_after=0, break_with='{"error": {"message": "too long", "code": 400}}'), "rejected_by_server",
     "too long"),
    (Script(break_after=2, break_with='{"error": {"message": "gone"}, "choices": [{"finish_reason": "error"}]}'),
     "server_error", "gone"),
    (Script(break_after=2, break_with="[DONE]"), "malformed_stream", "no finish_reason"),
    (Script(status=500), "server_error", "answered 500"),
    (Script(content_type="text/html", break_after=0, break_with="end"), "malformed_stream", "text/html"),
])  # fmt: skip
def test_errors_in_the_middle_of_a_stream_are_not_retried(server, script, kind, words):
    server.scripts.append(script)
    [answer] = ask(make_order(server.url), make_request())
    assert answer.error_kind == kind and words in str(answer.error_message), answer.error_message
    assert answer.retries == 0 and len(server.received) == 1
    assert answer.finish_reason is None and answer.output_tokens is None


PARTS = [{"type": "thinking", "thinking": [{"type": "text", "text": "Two and two."}]}, {"type": "text", "text": "4"}]
DELTA = ("text", "content", "reasoning", "reasoning_content", "token_ids", "logprobs", "finish_reason", "stop_reason")
FIELDS = (*DELTA, "type", "thinking", "token", "tokens", "logprob", "token_logprobs", "top_logprobs", "delta", "error",
          "choices", "usage", "completion_tokens", "prompt_tokens_details", "cached_tokens", "metrics",
          "speculative_decoding", "acceptance_histogram", "num_draft_tokens", "model", "completion_tokens_details",
          "reasoning_tokens", "total_tokens")  # fmt: skip

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5) | st.just(10**400)
    | st.sampled_from(["\ud800", "\0", "content", *PARTS]),
    lambda some: st.lists(some, max_size=3) | st.dictionaries(st.sampled_from(FIELDS) | st.text(), some, max_size=3),
    max_leaves=6,
)  # fmt: skip


@st.composite
def some_events(draw):
    """An event of a completion with a foreign value in one field, or in several."""
    delta = {"content": "4"} | draw(st.dictionaries(st.sampled_from(DELTA), VALUES, max_size=2))
    choice = {"finish_reason": "stop", draw(st.sampled_from(["delta", "index", *DELTA])): delta} | delta
    counts = (
        "completion_tokens",
        "prompt_tokens",
        "total_tokens",
        "prompt_tokens_details",
        "completion_tokens_details",
    )
    event = {"choices": [choice], "usage": {name: draw(VALUES) for name in counts}}
    drafts = {"acceptance_histogram": draw(VALUES), "num_draft_tokens": draw(VALUES)}
    event["metrics"] = draw(st.just({"speculative_decoding": drafts}) | VALUES)
    return json.dumps(event | draw(st.dictionaries(st.sampled_from(FIELDS[-13:]), VALUES, max_size=1)))


@pytest.mark.hypothesis
def test_any_event_is_an_answer_or_an_error_row_sent_once(server):
    events = ["[" * 100_000, '{"choices": ' + "[" * 900 + "]" * 900 + "}"]

    @given(some_events())
    def keep(event):
        events.append(event)

    keep()
    server.scripts.extend(Script(break_after=1, break_with=event) for event in events)
    answers = ask(make_order(server.url, endpoint="chat", retries=2), *map(make_chat, range(len(events))))
    assert len(server.received) == len(events) > 60
    assert {answer.error_kind for answer in answers} >= {None, "malformed_stream"}
    assert all(isinstance(answer.text, str) != isinstance(answer.error_kind, str) for answer in answers)
    stored = to_arrow("completions", answers)
    assert stored.num_rows == len(events)


@pytest.mark.parametrize(("content", "text", "reasoning"), [
    (PARTS, "4", "Two and two."), (["4", {"type": "output_text", "text": "2"}], "42", None), ([], "", None),
    ([{"type": "reasoning", "text": "Hm."}], "", "Hm."),
])  # fmt: skip
def test_content_in_parts_is_text_and_thinking(server, content, text, reasoning):
    event = {"choices": [{"delta": {"content": content}, "finish_reason": "stop"}]}
    server.scripts.append(Script(break_after=0, break_with=json.dumps(event)))
    [answer] = ask(make_order(server.url, endpoint="chat"), make_chat())
    assert (answer.error_kind, answer.text, answer.reasoning) == (None, text, reasoning)


def test_a_refusal_is_the_answer_and_a_second_answer_is_not(server):
    for delta in ({"refusal": "No."}, {"content": None, "refusal": "No."}):
        choices = [{"index": 0, "delta": delta, "finish_reason": "stop"}]
        server.scripts.append(Script(break_after=0, break_with=json.dumps({"choices": choices})))
    answers = ask(make_order(server.url, endpoint="chat"), *map(make_chat, range(2)))
    assert [answer.text for answer in answers] == ["No."] * 2
    answer = ServedAnswer()
    choices = [{"index": index, "delta": {"content": str(index)}} for index in (0, 1)]
    for some in ([choices[0]], [choices[1]], choices[::-1]):
        answer.take({"choices": some}, 0.0)
    assert answer.texts == ["0", "0"]


def usage_of(completion: int, total: int, reasoning: int | None = None, cached: int | None = None) -> Any:
    return {
        "prompt_tokens": 5, "completion_tokens": completion, "total_tokens": total,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }  # fmt: skip


@pytest.mark.parametrize(("thoughts", "usage", "counts"), [
    ([], usage_of(500, 505, 490), (500, 490, 490)),
    ([], usage_of(10, 505, 490), (500, 490, 490)),
    ([], usage_of(10, 505), (500, 490, 490)),
    ([], usage_of(10, 20, cached=5), (10, None, None)),
    ([], usage_of(10, 15, 0), (10, None, None)),
    (["All of it "] * 49, usage_of(500, 505, 490), (500, 490, 0)),
    (["In short."], usage_of(500, 505, 490), (500, 490, None)),
    (["a"] * 490, usage_of(500, 505, 490), (500, 490, 0)),
], ids=["hidden", "uncounted", "in the total", "cached", "none", "sent", "in short", "by token"])  # fmt: skip
def test_reasoning_tokens_count_and_those_that_were_not_sent_are_known(thoughts, usage, counts):
    answer = ServedAnswer()
    deltas = [*({"reasoning_content": thought} for thought in thoughts), *[{"content": "w "}] * 10]
    for at, delta in enumerate(deltas):
        answer.take({"model": "m", "choices": [{"index": 0, "delta": delta}]}, float(at))
    answer.take({"choices": [], "usage": usage}, 1000.0)
    assert (answer.output_tokens, answer.reasoning_tokens, answer.hidden_tokens, answer.model) == (*counts, "m")


@pytest.mark.parametrize(("given", "stored", "error_kind"), [
    ("length", "length", None), ("MAX_TOKENS", "length", None), ("content_filter", "content_filter", None),
    ("error", None, "server_error"), ("abort", None, "server_error"),
])  # fmt: skip
def test_finish_reason_is_vllms_or_as_it_came_and_failed_answers_are_errors(server, given, stored, error_kind):
    event = {"model": "other", "choices": [{"index": 0, "delta": {"content": "4"}, "finish_reason": given}]}
    server.scripts.append(Script(break_after=0, break_with=json.dumps(event)))
    [answer] = ask(make_order(server.url, endpoint="chat"), make_chat())
    assert (answer.finish_reason, answer.error_kind) == (stored, error_kind)
    assert answer.response_model == (None if error_kind else "other")


def test_one_that_takes_too_long_is_a_row_and_the_others_go_on(server):
    server.scripts.append(Script(delay_s=3600))
    late, *good = sorted(ask(make_order(server.url, timeout_s=5), *map(make_request, range(8))),
                         key=lambda answer: answer.error_kind is None)  # fmt: skip
    assert late.error_kind == "timed_out" and "5 s" in str(late.error_message)
    assert len(good) == 7 and all(answer.error_kind is None for answer in good)


def come_back_after(monkeypatch: pytest.MonkeyPatch, server: FakeServer, failures: int) -> None:
    """Start the server again as soon as that many calls have failed."""
    left = itertools.count(failures - 1, -1)

    def choose(retries: int, failure: Any) -> float:
        if next(left) == 0:
            server.start()
        return 0.02

    monkeypatch.setattr(core, "choose_wait", choose)


def test_a_server_that_goes_away_and_comes_back_is_waited_for(server, monkeypatch):
    come_back_after(monkeypatch, server, failures=5)
    [answer] = ask(make_order(server.url, retries=200, timeout_s=120), make_request(), before=server.stop)
    assert answer.error_kind is None and answer.retries == 5


@pytest.mark.parametrize("proxy", [502, 503])
def test_answer_waits_for_a_server_that_is_away_in_a_closed_loop(server, proxy, monkeypatch):
    """However few retries are allowed; what a proxy says of it counts too."""
    come_back_after(monkeypatch, server, failures=12)
    server.scripts += [Script(status=proxy)] * 12
    order = make_order(server.url, retries=1, timeout_s=60)
    answers = ask(order, *map(make_request, range(4)), before=server.stop, window=64)
    assert [(answer.error_kind, answer.output_tokens) for answer in answers] == [(None, 4)] * 4
    assert all(answer.retries > 1 for answer in answers)


def test_answer_ends_the_run_when_the_server_stays_away(server):
    """Error rows would be final; a run that ends can be resumed."""
    with pytest.raises(ServerError, match=r"has been unreachable for 1 s .*hint: start the server, then resume"):
        ask(make_order(server.url, timeout_s=1), make_request(), before=server.stop, window=64)


@pytest.mark.parametrize(("retries", "window"), [(0, 64), (2, None)], ids=["no retry is wanted", "an open loop"])
def test_answer_does_not_wait_where_failures_are_measured(server, retries, window):
    order = make_order(server.url, retries=retries, timeout_s=60)
    [answer] = ask(order, make_request(), before=server.stop, window=window)
    assert (answer.error_kind, answer.retries) == ("server_unreachable", retries)


class OwnServer:
    """Details that a core has of its own server."""

    key = None

    def __init__(self, url: str, is_dead: bool = False) -> None:
        self.url = url
        self.is_dead = is_dead
        self.looks = 0

    async def start(self) -> None: ...

    def read_sizes(self) -> dict[str, int]:
        return {"max_num_seqs": 8}

    async def check_alive(self) -> None:
        self.looks += 1
        await asyncio.sleep(0.05)
        if self.is_dead:
            raise self.describe_death()

    def describe_death(self) -> EngineGoneError:
        return EngineGoneError("vLLM's server holds a dead engine. See its log for why.")

    async def stop(self) -> None: ...


def ask_own(own: OwnServer, script: Script) -> Completion:
    order, message = make_order(None, timeout_s=2 if script.delay_s else 60), Generate(make_request(), 0.0, 8)
    return with_core(order, lambda core: core.answer(message), lambda _: own)


# vllm/v1/engine/exceptions.py of vLLM 0.32, as its server sends it in a stream and as the body of a 500.
ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
DEAD_EVENT = json.dumps({"error": {"message": ENGINE_DEAD, "type": "InternalServerError", "code": 500}})


@pytest.mark.parametrize(
    ("script", "is_dead", "looks"),
    [
        (Script(break_after=2, break_with=DEAD_EVENT), False, 0),  # its own word is enough
        (Script(status=500, message=ENGINE_DEAD), False, 0),
        (Script(break_after=2, break_with=DEAD_EVENT.replace("500", "400")), True, 1),
        (Script(break_after=2), True, 1),
        (Script(break_after=2, break_with="end"), True, 1),
        (Script(reset=True), True, 1),
        (Script(status=500), True, 1),
        (Script(delay_s=3600), True, 1),  # its time is over
    ],
)
def test_answer_raises_when_our_own_server_is_dead(server, script, is_dead, looks):
    server.default, own = script, OwnServer(server.url, is_dead)
    with pytest.raises(EngineGoneError, match="dead engine"):
        ask_own(own, script)
    assert own.looks == looks


@pytest.mark.parametrize(
    ("script", "kind"),
    [(Script(break_after=2), "stream_cut"), (Script(status=500), "server_error"), (Script(delay_s=3600), "timed_out")],
)
def test_answer_is_an_error_row_when_our_own_server_is_well(server, script, kind):
    server.default = script
    assert ask_own(OwnServer(server.url), script).error_kind == kind


def test_nothing_limits_the_connections_of_an_open_loop(server):
    count = 1200  # beyond the usual limits of pools, which are 100 and 1,000
    server.default = Script(delay_s=3600)

    async def act(core: ServerCore) -> None:
        tasks = [asyncio.create_task(core.answer(Generate(make_request(i), 0.0, None))) for i in range(count)]
        while server.in_flight < count:
            await asyncio.sleep(0.05)
            assert not any(task.done() for task in tasks)
        assert core.sample().in_flight_requests == count
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert core.sample().in_flight_requests == 0

    with_core(make_order(server.url), lambda core: asyncio.wait_for(act(core), PATIENCE_S))


def test_tokens_are_counted_while_they_come_and_warm_up_is_not(server):
    async def act(core: ServerCore) -> None:
        await core.warm_up(make_request())
        assert core.sample().output_tokens == 0
        await core.answer(Generate(make_request(), 0.0, None))
        sample = core.sample()
        assert (sample.output_tokens, sample.in_flight_requests, sample.engine_steps) == (4, 0, None)
        server.default = Script(status=400)
        assert "no, thank you" in (await core.warm_up(make_request()) or "")

    with_core(make_order(server.url), act)


def test_server_details_are_kept(server):
    opened = open_only(make_order(server.url))
    assert opened.max_model_len == 128 and opened.max_num_seqs is None
    assert opened.details == {
        "endpoint": "completions", "served_model": "fake-model", "takes_vllm_extensions": True, "max_model_len": 128,
        "vllm_version": "0.32.0", "served_root": None, "server": server.url,
    }  # fmt: skip
    assert not server.received  # nothing was generated for it


def test_a_wrong_model_is_told_which_there_are(server):
    with pytest.raises(SpecError, match=r"no model 'gpt-9'. It has: fake-model"):
        open_only(make_order(server.url, model="gpt-9"))
    server.models = [{"id": "a"}, {"id": "b"}]
    with pytest.raises(SpecError, match=r"no model 'fake-model'. It has: a, b"):
        open_only(make_order(server.url))


def test_server_works_without_a_list_of_models(plain_server):
    plain_server.endpoints.remove("/v1/models")
    ask(make_order(plain_server.url, model="mine"), make_request())
    assert plain_server.received[0].body["model"] == "mine"


def test_missing_endpoint_raises(server):
    server.endpoints.remove("/v1/completions")
    with pytest.raises(SpecError, match=r"no endpoint .*/v1/completions .*engine\.server\.endpoint to chat"):
        open_only(make_order(server.url))
    with pytest.raises(SpecError, match="is the base URL"):
        open_only(make_order(server.url.removesuffix("/v1")))


def test_unreachable_server_raises(server):
    server.stop()
    with pytest.raises(ServerError, match=r"No server can be reached at http://127\.0\.0\.1:\d+/v1: .*Connect"):
        open_only(make_order(server.url))


@pytest.mark.parametrize("is_reset", [False, True])
def test_a_server_that_closes_the_connection_was_reached(is_reset):
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"

        def close_all() -> None:
            with suppress(OSError):  # the server is closed
                while True:
                    connection = server.accept()[0]
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", is_reset, 0))
                    connection.close()

        threading.Thread(target=close_all, daemon=True).start()
        with pytest.raises(ServerError, match=f"{url} closed the connection without an answer"):
            open_only(make_order(url, model="mine"))
        server.shutdown(socket.SHUT_RDWR)


def test_a_key_is_read_from_the_named_variable(monkeypatch):
    with FakeServer(key="sesame").running() as server:
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        with pytest.raises(SpecError, match=r"refused the API key.*401.*environment variable MY_KEY"):
            open_only(make_order(server.url, api_key_env="MY_KEY"))
        monkeypatch.setenv("MY_KEY", "sesame")
        [answer] = ask(make_order(server.url, api_key_env="MY_KEY"), make_request())
        assert answer.error_kind is None


def test_without_a_key_none_is_sent(server, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    ask(make_order(server.url), make_request())
    assert "authorization" not in server.received[0].headers


def test_certificates(tmp_path, monkeypatch):
    import ssl

    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with FakeServer(tls=context).running() as server:
        with pytest.raises(ServerError, match=r"certificate of https.* is not accepted.*SSL_CERT_FILE"):
            open_only(make_order(server.url))
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        [answer] = ask(make_order(server.url), make_request())
        assert answer.text == "".join(ANSWER)


@pytest.mark.parametrize("variable", ["http_proxy", "all_proxy"])
def test_requests_go_through_the_environments_proxy_but_not_to_this_machine(monkeypatch, variable):
    for name in ("http_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with FakeServer(is_vllm=False).running() as proxy, FakeServer().running() as server:
        proxy.endpoints = ["http://model.invalid/v1/completions"]
        monkeypatch.setenv(variable, f"http://me:pass@127.0.0.1:{proxy.port}")
        for url in ("http://model.invalid/v1", server.url):
            [answer] = ask(make_order(url), make_request())
            assert answer.error_kind is None
        [received] = proxy.received
        assert received.headers["proxy-authorization"].startswith("Basic ") and len(server.received) == 1
        monkeypatch.setenv("no_proxy", "model.invalid")
        with pytest.raises(ServerError, match=r"No server can be reached at http://model\.invalid/v1"):
            open_only(make_order("http://model.invalid/v1"))


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_events_are_found_however_they_are_cut(line_end):
    text = line_end.join(['\ufeffdata: {"a": 1}', "", ": a comment", "event: x", 'data:{"b":', 'data: "ü"}', "",
                          "data:", "", "data: [DONE]", "", 'data: {"a": 2}', "", ""])  # fmt: skip
    for size in range(1, 20):
        reader, data = EventReader(), text.encode()
        found = [event for at in range(0, len(data), size) for event in reader.feed(data[at : at + size])]
        assert found == [{"a": 1}, {"b": "ü"}] and reader.has_ended
    with pytest.raises(MalformedStreamError):
        list(EventReader().feed(b"data: " + json.dumps("text").encode() + b"\n\n"))
