"""vLLM's engines on the tiny model, offline, async and served: equal answers, stamps, errors, deaths, and no remains.

`offline` is continuous, and the one that others are compared with. `barrier` has batches of four, a stamp per token,
small steps and compact JSON. `thinking` engines split answers: the tiny model does not think, but what it writes has a
beginning and an end, and a character of it can be the tag. Tests that end an engine come last.
"""

import itertools
import json
import math
import os
import signal
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest
from engine_kit import (
    ARGS,
    NO_PREEMPTIONS,
    ONE_CORE,
    ROOT,
    SCHEMA,
    Asker,
    Control,
    CountedRequests,
    Kept,
    answer_seeded,
    answer_to,
    answers_in,
    by_id,
    check_same,
    find_core,
    is_rising,
    living_members,
    load_of,
    open_async,
    open_engine,
    parts_of,
    prepare_options,
    stamps_of,
    wait_until_gone,
)
from run_kit import plain_request

from assayline.clock import RunClock
from assayline.engines import client
from assayline.engines.client import HostedEngine
from assayline.engines.devices.watch import DeviceMemory
from assayline.engines.process import HostProcess, engine_environment
from assayline.engines.recovery.engine import AdaptiveEngine
from assayline.engines.recovery.policy import RecoveryPolicy, Sizes, sizes_of
from assayline.errors import EngineDiedError, EngineError, SpecError
from assayline.load.progress import LoadProgress
from assayline.records import NOT_SENT, Completion, EngineEvent, Request
from assayline.run.begin import begin_evaluation
from assayline.run.drive import drive_worker
from assayline.settings import Settings
from assayline.spec.engine import ReasoningSpec, ServerSpec
from assayline.spec.file import load_spec
from assayline.store.database import connect, read_rows
from assayline.store.ingest import load_parts
from assayline.store.parts import write_part

pytestmark = pytest.mark.vllm

CONTEXT = ARGS["max_model_len"]
KEY = "of a test"
UNENDED = {"ignore_eos": True}
THINKING = ReasoningSpec(close="1")
"""The tiny model answers 9 + 4 with 13: of that, 1 is the tag that closes the thinking, and 3 is the answer."""
PARSER = """
from vllm.reasoning.abs_reasoning_parsers import ReasoningParserManager
from vllm.reasoning.basic_parsers import BaseThinkingReasoningParser


class TinyParser(BaseThinkingReasoningParser):
    start_token = "<|assistant|>"
    end_token = "1"


ReasoningParserManager.register_module("tiny", module=TinyParser)
"""
BARRIER = {
    "max_num_batched_tokens": 32,
    "enable_chunked_prefill": True,
    "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
}
Engines = dict[str, Kept]


def open_server(model: Path, log_path: Path, control: Control | None = None, **changes: Any) -> HostedEngine:
    values = {"server": ServerSpec(), "args": ONE_CORE, "window": 8, **changes}
    return open_engine(model, log_path, control, backend="server", **values)


@pytest.fixture(scope="module")
def controls() -> defaultdict[str, Control]:
    return defaultdict(Control)


@pytest.fixture(scope="module")
def kept(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory, controls: defaultdict[str, Control]
) -> Iterator[Engines]:
    """Each is opened when it is first asked for; a test that ends one takes it, or leaves its replacement."""
    folder = tmp_path_factory.mktemp("engines")
    (folder / "tiny_parser.py").write_text(PARSER)
    parser = {"reasoning_parser": "tiny", "reasoning_parser_plugin": str(folder / "tiny_parser.py")}
    openers: dict[str, Callable[..., Any]] = {
        "barrier": partial(open_engine, mode="barrier", window=4, record_token_times=True, args={**ARGS, **BARRIER}),
        "thinking": partial(open_engine, reasoning=THINKING, args={**ARGS, "structured_outputs_config": parser}),
        "async": partial(open_async, args={**ARGS, "max_num_batched_tokens": 64}),
        "async thinking": partial(open_async, reasoning=THINKING),
        "server": open_server,
    }
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("VLLM_API_KEY", KEY)
        kept = {
            name: Kept(partial(opener, tiny_model, folder / name / "engine.log", controls[name]))
            for name, opener in openers.items()
        }
        for one in kept.values():
            stack.callback(one.close)
        yield kept


def over(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("each", names, indirect=True)


@pytest.fixture
def each(request: pytest.FixtureRequest, kept: Engines) -> Any:
    """The engine of that name."""
    return request.getfixturevalue("engine") if request.param == "offline" else kept[request.param].engine


@pytest.fixture
def barrier(kept: Engines) -> HostedEngine:
    return kept["barrier"].engine


@pytest.fixture
def thinker(kept: Engines) -> HostedEngine:
    return kept["thinking"].engine


@pytest.fixture
def async_engine(kept: Engines) -> HostedEngine:
    return kept["async"].engine


@pytest.fixture
def served(kept: Engines) -> HostedEngine:
    return kept["server"].engine


# --- Answers


@over("barrier", "async", "server")
def test_answers_are_those_of_the_offline_engine(each, engine, asker, request):
    """Streamed or not: texts, ids, reasons and log-probabilities."""
    asked: list[dict[str, Any]] = [
        {"logprobs": 2},
        {"stop": ["3"]},
        {"stop": ["3"], "include_stop_str_in_output": True},
        {"max_tokens": 1},
        {"max_tokens": 9, "logprobs": 0, **UNENDED},
        {"max_tokens": None},
        {"max_tokens": None, **UNENDED},
        {"stop_token_ids": [asker.token("7")]},
        {"structured_outputs": {"choice": ["cat", "dog"]}},
    ]
    requests = [asker.ask(f"What is {n} + 4?", **sampling) for n, sampling in enumerate(asked)]
    more = {} if "server" in request.node.name else {"logprobs": 2}
    requests.append(asker.ask(prompt_logprobs=2, max_tokens=4, **more))
    if "async" in request.node.name:
        requests += prepare_options(asker, [{"prompt": "What is 3 + 4?", "choices": ["7", "8"]}])[0].ready
    check_same(each, engine, requests)


@over("barrier", "async")
def test_a_seeded_answer_is_the_same_if_its_prompt_is_read_in_steps(each, engine):
    found = [answer_seeded(one, *seeds) for one in (each, engine) for seeds in (range(4), range(3, -1, -1))]
    assert all(one == found[0] for one in found) and len(set(map(tuple, found[0].values()))) > 1, "seeds differ"


@over("barrier", "async", "server")
def test_every_token_has_its_stamp(each, asker, request):
    """A hundred at once for the async engine: its event loop has much to do while it steps, and nothing is merged."""
    requests = [asker.ask(max_tokens=length, **UNENDED) for length in (1, 2, 3, 17)]
    if "async" in request.node.name:
        requests += [asker.ask(max_tokens=5 + 3 * (n % 20), **UNENDED) for n in range(100)]
    answers = by_id(each.generate(requests))
    for asked in requests:
        answer = answers[asked.request_id]
        stamps = answer.token_at_s
        assert stamps is not None and answer.output_token_ids is not None
        assert len(stamps) == len(answer.output_token_ids) == answer.output_tokens == asked.sampling["max_tokens"]
        assert (stamps[0], stamps[-1]) == (answer.first_token_at_s, answer.last_token_at_s)
        assert is_rising([answer.sent_at_s, *stamps, answer.finished_at_s]) and is_rising(stamps_of(answer))
        if "server" in request.node.name:
            assert answer.sent_at_s == answer.arrived_at_s and answer.queued_at_s is None and answer.retries == 0
            continue
        assert None not in stamps_of(answer)
        assert all(before < after for before, after in pairwise(stamps)), "no two tokens share a step"
        assert answer.preemptions == NO_PREEMPTIONS and answer.cached_tokens is not None


def test_one_token_has_a_time_to_first_token_and_no_time_per_token(barrier, asker, tmp_path):
    """Undefined values are NULL, not 0."""
    requests = [asker.ask(max_tokens=1), asker.ask(max_tokens=2, **UNENDED)]
    write_part(tmp_path, "requests", "x", requests)
    write_part(tmp_path, "completions", "x", list(barrier.generate(requests)))
    with connect(tmp_path / "test.duckdb", 0) as connection:
        load_parts(connection, "run", tmp_path)
        query = "select output_tokens, ttft_s > 0, tpot_s > 0 from stg_requests order by output_tokens"
        assert connection.execute(query).fetchall() == [(1, True, None), (2, True, True)]
        gaps = "select sum(len(token_at_s) - 1) from answer where len(token_at_s) > 1"
        assert connection.execute(gaps).fetchall() == [(1,)]


@over("offline", "server")
def test_an_engine_reports_its_details(each, request):
    facts, details = each.facts, each.facts.details
    assert facts.max_model_len == CONTEXT and facts.load_s > 0
    assert details["device"] == "cpu" and details["max_num_seqs"] == 8
    assert details["vllm_version"] and details["torch_version"]
    if "server" in request.node.name:
        assert details["server"] == "vllm serve, started for this run"
    else:
        assert (facts.window_requests, details["dtype"]) == (10, "float32")


# --- Windows, batches and loads


def test_a_barrier_waits_for_the_slowest_and_flushes_the_remainder(barrier, asker):
    requests = [asker.ask(max_tokens=2 + 9 * (number % 4), **UNENDED) for number in range(10)]
    counted = CountedRequests(requests)
    found = counted.answers(barrier)
    first = next(found)
    assert counted.given == 4, "it reads no further than its batch"
    answers = by_id([first, *found])
    assert len(answers) == 10 and counted.most == 4
    batches = [[answers[request.request_id] for request in requests[i : i + 4]] for i in (0, 4, 8)]
    for before, after in pairwise(batches):
        assert max(row.finished_at_s or 0 for row in before) <= min(row.arrived_at_s or 0 for row in after)
    assert {row.window_requests for row in answers.values()} == {4}
    answers = list(barrier.generate([*(asker.send([]) for _ in range(6)), asker.ask()]))
    assert [answer.error_kind for answer in answers].count(None) == 1 and len(answers) == 7, "a batch of errors"


@pytest.fixture
def paced(
    async_engine: HostedEngine, controls: defaultdict[str, Control]
) -> Iterator[Callable[..., dict[str, Completion]]]:
    """Answers under a load: what `worker.py` does by opening another engine."""
    controls["async"].ends.clear()

    def answer(load: LoadProgress, requests: list[Request]) -> dict[str, Completion]:
        async_engine._load, async_engine._window_requests = load, None
        return by_id(async_engine.generate(requests))

    load, window = async_engine._load, async_engine._window_requests
    yield answer
    async_engine._load, async_engine._window_requests = load, window


def test_an_open_loop_sends_when_due_though_the_engine_is_slow(paced, asker):
    """Eight at once run, thirty come within half a second: none waits for another to be sent."""
    requests = [asker.ask(max_tokens=200, **UNENDED) for _ in range(30)]
    answers = paced(load_of({"kind": "constant", "rate_per_s": 60.0}), requests)
    rows = [answers[request.request_id] for request in requests]
    due, sent = [row.due_at_s or 0 for row in rows], [row.sent_at_s or 0 for row in rows]
    assert [after - before for before, after in pairwise(due)] == pytest.approx([1 / 60] * 29, abs=1e-5)
    assert all(late >= 0 for late in (s - d for s, d in zip(sent, due, strict=True)))
    assert sent == sorted(sent), "in the order of the prompts"
    assert {row.window_requests for row in rows} == {None}
    ends = sorted(row.finished_at_s or 0 for row in rows)
    most = max(sum(s <= moment for s in sent) - sum(end <= moment for end in ends) for moment in sent)
    assert most > 10, "a window of the engine's size would have held them back"


def test_errors_of_the_engine_end_a_load_and_leave_the_rest_unsent(paced, controls, asker):
    requests = [asker.send([]) if n == 3 else asker.ask(max_tokens=3) for n in range(300)]
    answers = paced(load_of({"kind": "constant", "rate_per_s": 50.0}, max_errors=1), requests)
    was_sent = [answers[request.request_id].error_kind != NOT_SENT for request in requests]
    assert was_sent == sorted(was_sent, reverse=True), "the first ones, and then no more"
    assert 4 <= sum(was_sent) < len(answers) == 300
    assert [end.reason for end in controls["async"].ends] == ["max_errors"]


def test_counters_are_the_engines_and_leave_the_warm_up_out(async_engine, controls, asker):
    samples = controls["async"].samples
    assert by_id(async_engine.generate([asker.ask()]))  # the last counters so far
    start = samples[-1]
    answers = list(async_engine.generate([asker.ask(max_tokens=n, **UNENDED) for n in (3, 17, 40)]))
    last = samples[-1]
    assert last.output_tokens - start.output_tokens == sum(answer.output_tokens or 0 for answer in answers) == 60
    assert (last.in_flight_requests, last.kv_cache_usage_share) == (0, 0)
    assert (last.running_requests, last.waiting_requests, last.preemptions) == (0, 0, 0), "as vLLM says itself"
    assert last.engine_steps is not None and start.engine_steps is not None
    assert 40 <= last.engine_steps - start.engine_steps <= 60, "as many as the longest, and at most one per token"


# --- Bad requests, and iterators that are left

REFUSED = ("rejected_by_engine", "rejected_by_server")
BAD: dict[str, tuple[Callable[[Asker], Request], str | None, str | None]] = {
    "too long": (lambda asker: asker.send([asker.token("1")] * (CONTEXT + 50)), *REFUSED),
    "no room for an answer": (lambda asker: asker.send([asker.token("1")] * CONTEXT), *REFUSED),
    "empty": (lambda asker: asker.send([]), *REFUSED),
    "unknown token": (lambda asker: asker.send([10**6]), *REFUSED),
    "no JSON schema": (lambda asker: asker.ask(structured_outputs={"json": "{not json"}), *REFUSED),
    "a reference to nothing": (lambda asker: asker.ask(structured_outputs={"json": {"$ref": "#/$defs/no"}}), *REFUSED),
    "a grammar without a root": (lambda asker: asker.ask(structured_outputs={"grammar": "n ::= [0-9]"}), *REFUSED),
    "no grammar": (lambda asker: asker.ask(structured_outputs={"grammar": "root ::= ((("}), *REFUSED),
    "too many log-probabilities": (lambda asker: asker.ask(logprobs=10**4), *REFUSED),
    "temperature": (lambda asker: asker.ask(temperature=5), "sampling_error", "rejected_by_server"),
    "negative temperature": (lambda asker: asker.ask(temperature=-1), "sampling_error", "rejected_by_server"),
    "unknown argument": (lambda asker: asker.ask(no_such_argument=1), "sampling_error", None),
    "unknown form": (lambda asker: asker.ask(structured_outputs={"x": 1}), "sampling_error", None),
    "ids without a text": (lambda asker: asker.ask(detokenize=False), None, "sampling_error"),
}
"""A request, and what becomes of it in our process and at a server; None: it is another matter there."""


@over("offline", "async", "server")
def test_a_bad_request_among_many_is_one_error_row(each, asker, request):
    is_served = "server" in request.node.name
    bad = {name: make(asker) for name, (make, *kinds) in BAD.items() if kinds[is_served]}
    good = [asker.ask(row["question"]) for row in asker.rows[:40]]
    mixed = list(good)
    for position, one in enumerate(bad.values()):
        mixed.insert(3 * position + 1, one)
    answers = by_id(each.generate(mixed))
    assert len(answers) == len(mixed)
    kinds = {name: answers[one.request_id].error_kind for name, one in bad.items()}
    assert kinds == {name: BAD[name][1 + is_served] for name in bad}
    for one in bad.values():
        row = answers[one.request_id]
        assert row.error_message and row.finished_at_s and (row.arrived_at_s or is_served)
        assert row.text is row.output_tokens is row.finish_reason is row.first_token_at_s is row.queued_at_s is None
    if is_served:
        assert str(CONTEXT) in str(answers[bad["too long"].request_id].error_message)
    right = sum(answers[r.request_id].text == row["answer"] for r, row in zip(good, asker.rows, strict=False))
    assert right >= 36


@pytest.mark.parametrize(
    ("each", "seen"), [("offline", 0), ("offline", 1), ("offline", 7), ("async", 1)], indirect=["each"]
)
def test_an_iterator_left_early_aborts_and_leaves_the_engine_usable(each, asker, seen):
    answers = each.generate(asker.ask(max_tokens=3 + 20 * n, **UNENDED) for n in itertools.count())
    for _ in range(seen):
        next(answers)
    answers.close()
    again = [asker.ask(row["question"]) for row in asker.rows[:20]]
    found = by_id(each.generate(again))
    assert sorted(found) == sorted(request.request_id for request in again)
    assert sum(found[r.request_id].text == row["answer"] for r, row in zip(again, asker.rows, strict=False)) >= 18


# --- Likelihoods of options, against the same model in plain torch


@over("offline", "barrier")
def test_sums_of_long_prompts_are_computed_whole_each_time(each, asker, reference):
    """Cached blocks have no log-probabilities; and small steps read such a prompt in several."""
    rows = [{"prompt": "What is 3 + 4? " * 22, "choices": ["7", "What is 8 + 1? " * 4]}]
    [prompt] = prepare_options(asker, rows)
    assert len(prompt.ready[0].prompt_token_ids) > 128
    for _ in range(2):
        answers = by_id(each.generate(prompt.ready))
        for request in prompt.ready:
            answer = answers[request.request_id]
            assert answer.option_logprob == pytest.approx(reference.option_logprob(request), abs=2e-3, rel=1e-3)
            assert answer.token_at_s is None or len(answer.token_at_s) == answer.output_tokens


# --- Answers of a given form: each is checked by a parser that is not the engine's


def test_every_answer_is_json_of_the_schema_unless_it_is_cut_off(barrier, engine, asker):
    answers = answers_in(barrier, asker, {"json": SCHEMA})
    for answer in answers:
        assert answer.finish_reason == "stop"
        jsonschema.validate(json.loads(str(answer.text)), SCHEMA)
    assert len({answer.text for answer in answers}) > 3
    for answer in answers_in(engine, asker, {"json": SCHEMA}, max_tokens=3):
        assert answer.finish_reason == "length"
        with pytest.raises(ValueError, match="column"):
            json.loads(str(answer.text))


# --- A server of our own


def find_server(host_pid: int) -> psutil.Process:
    [server] = psutil.Process(host_pid).children()
    return server


def find_url(served: HostedEngine) -> str:
    """Of our own server, for those who take it for somebody's."""
    listening = find_server(served.host_pid).net_connections("tcp")
    [port] = {one.laddr.port for one in listening if one.status == psutil.CONN_LISTEN}
    return f"http://127.0.0.1:{port}/v1"


def test_own_server_rejects_other_users_of_the_machine(served):
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{find_url(served)}/models", timeout=30)


def test_chats_are_rendered_by_the_server(served, tiny_model, tmp_path, asker):
    env = {**engine_environment(Settings(), {}, {}), "SERVED_KEY": KEY}
    server = ServerSpec(url=find_url(served), endpoint="chat", api_key_env="SERVED_KEY")
    question = asker.rows[0]["question"]
    message = {"role": "user", "content": question}
    sampling = {"temperature": 0, "max_tokens": None}
    chat = plain_request("chat", prompt_token_ids=[], sampling=sampling, messages=[message])
    with closing(open_server(tiny_model, tmp_path / "chat.log", server=server, env=env, args={})) as remote:
        [answer] = remote.generate([chat])
    same = answer_to(served, asker, question, max_tokens=None)
    assert (answer.text, answer.output_token_ids) == (same.text, same.output_token_ids)
    assert answer.prompt_tokens == same.prompt_tokens
    assert answer.token_at_s is not None and len(answer.token_at_s) == answer.output_tokens


def test_the_served_example_is_measured_at_its_rate(served, settings, monkeypatch):
    """On the server that runs already, as its comment says: by URL, and without arguments of an engine."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("SERVED_KEY", KEY)
    server = {"url": find_url(served), "endpoint": "completions", "api_key_env": "SERVED_KEY"}
    engine = json.dumps({"backend": "server", "server": server})
    short = {"prompts.limit": "30", "load.warmup_s": "1", "load.cooldown_s": "1"}
    spec = load_spec("examples/served.yaml", {"engine": engine, **short})
    evaluation = begin_evaluation(spec, settings)
    counts = evaluation.prepare()
    drive_worker(evaluation, "worker-0")
    evaluation.finish(counts)
    good = "from metric_value where metric = 'good_share' and detail = 'interactive' and n > 0"
    with connect(settings.database_path, 10, read_only=True) as connection:
        rows = read_rows(connection, "from stg_requests order by due_at_s")
        assert len(read_rows(connection, good)) == 1
    assert len(rows) == 30 and {row["status"] for row in rows} == {"ok"}
    assert all(row["sent_at_s"] >= row["due_at_s"] and row["ttft_s"] > 0 for row in rows)
    assert {row["phase"] for row in rows} == {"warmup", "measured", "cooldown"}


@pytest.mark.rare
def test_an_own_server_fills_the_seats_of_all_replicas(tiny_model, tmp_path, asker):
    """vLLM chooses their number, and more requests run at once than one replica has seats."""
    args = {name: value for name, value in ONE_CORE.items() if name != "max_num_seqs"}
    control = Control()
    args |= {"data_parallel_size": 2, "kv_cache_memory_bytes": 2**28}
    with closing(open_server(tiny_model, tmp_path / "server.log", control, args=args, window=None)) as engine:
        seats, window = engine.facts.details["max_num_seqs"], engine.facts.window_requests
        assert seats and seats > 64 and window == math.ceil(1.25 * 2 * seats)
        list(engine.generate(asker.ask(max_tokens=150, **UNENDED) for _ in range(window)))
    assert max(sample.running_requests or 0 for sample in control.samples) > seats


# --- Another run, deaths, and ends


class Deaths:
    """An adaptive engine whose first engine is a kept one, with what was recorded."""

    def __init__(self, first: Kept, open_next: Callable[..., HostedEngine]) -> None:
        self.opened: list[HostedEngine] = []
        self.events: list[EngineEvent] = []
        self._first, self._open_next = first, open_next

    def open(self, sizes: Sizes, changed: dict[str, Any], generation: int) -> HostedEngine:
        self.opened.append(
            self._first.take() if not self.opened else self._open_next(sizes, changed, generation)  # as killed
        )
        return self.opened[-1]

    @contextmanager
    def around(self, policy: RecoveryPolicy, generation: int) -> Iterator[AdaptiveEngine]:
        """The engine, which is closed at an error alone."""
        clock = RunClock.start()
        with ExitStack() as at_error:
            engine = AdaptiveEngine(
                self.open, policy, self.events.append, DeviceMemory(()), clock=clock, first_generation=generation
            )
            at_error.callback(engine.close)
            yield engine
            at_error.pop_all()

    @property
    def failed(self) -> Any:
        [failed] = [event.details for event in self.events if event.event == "failed"]
        return failed


def kill_after(answers: Iterable[Completion], count: int, kill: Callable[[], None]) -> dict[str, Completion]:
    found: list[Completion] = []
    for answer in answers:
        found.append(answer)
        if len(found) == count:
            kill()
    return by_id(found)


def test_a_killed_engine_core_is_replaced_and_nothing_is_lost_or_doubled(kept, asker, tiny_model, tmp_path):
    """In an open loop, with a hundred in flight: the pattern continues, and every request has one answer."""
    load = load_of({"kind": "constant", "rate_per_s": 100.0})
    first = kept["async"].engine
    before = first._order.engine_generation
    first._load, first._window_requests = load, None

    def open_next(_: Sizes, changed: dict[str, Any], generation: int) -> HostedEngine:
        changes = {"engine_generation": generation, "load": load, "reasoning": THINKING, "record_token_times": True}
        log = tmp_path / f"engine-{generation}.log"
        return HostedEngine(**parts_of("async", tiny_model, log, args={**ARGS, **changed}, **changes))

    short = [asker.ask() for _ in range(5)]
    long = [asker.ask(max_tokens=150, **UNENDED) for _ in range(60)]
    names = [request.request_id for request in [*short, *long]]
    deaths = Deaths(kept["async"], open_next)
    with deaths.around(RecoveryPolicy(sizes_of({"max_num_seqs": 8}, None), has_window=False), before) as engine:
        engine.warm_up(plain_request("warm-up", prompt_token_ids=[1] * 32, sampling={"max_tokens": 2}))
        answers = kill_after(engine.generate([*short, *long]), 1, lambda: find_core(first.host_pid).kill())
        assert set(answers) == set(names)
        assert [answer.error_kind for answer in answers.values()] == [None] * 65
        assert [answers[request.request_id].output_tokens for request in long] == [150] * 60
        assert {answer.engine_generation for answer in answers.values()} == {before, before + 1}
        assert {answer.window_requests for answer in answers.values()} == {None}
        assert (deaths.failed["is_memory"], deaths.failed["phase"]) == (False, "run")
        later = sorted((a.due_at_s or 0, a.request_id) for a in answers.values() if a.engine_generation == before + 1)
        assert [name for _, name in later] == [name for name in names if answers[name].engine_generation == before + 1]
        assert load.settled == 65 and living_members(first.host_pid) == []
    deaths.opened[1]._load, deaths.opened[1]._window_requests = LoadProgress(), 10
    kept["async thinking"].keep(deaths.opened[1])


def split(answer: Completion) -> tuple[str | None, str | None]:
    return answer.reasoning, answer.text


@over("thinking", "async thinking")
def test_thinking_is_kept_apart_and_an_engine_is_free_after_a_stop(each, asker):
    questions = [asker.ask("What is 9 + 4?"), asker.ask("What is 3 + 4?"), asker.ask("What is 9 + 2?")]
    answers = by_id(each.generate(questions))
    assert [split(answers[one.request_id]) for one in questions] == [("", "3"), ("7", ""), ("", "1")]
    assert all(answer.finish_reason == "stop" and answer.output_tokens for answer in answers.values())
    stopped = [asker.ask("What is 9 + 4?", stop=["3"], max_tokens=200, **UNENDED) for _ in range(30)]
    others = [asker.ask("What is 3 + 4?") for _ in range(20)]
    answers = by_id(each.generate([*stopped, *others]))
    assert {answers[one.request_id].reasoning for one in others} == {"7"}
    for answer in (answers[one.request_id] for one in stopped):
        assert (answer.text, answer.finish_reason, answer.stop_reason) == ("", "stop", "3")
        assert 0 < (answer.output_tokens or 0) < 200
        assert answer.token_at_s is None or len(answer.token_at_s) == answer.output_tokens


def test_a_stop_does_not_fire_in_the_thinking_and_does_in_the_answer(thinker, engine, asker):
    """A long text of the model's own making, with the tag in its middle and the stop on both sides of that."""
    end, unended = "<|end|>", {"max_tokens": 100, "skip_special_tokens": False, **UNENDED}
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
    assert split(stopped) == (reasoning.strip(), answer.partition(end)[0])
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", end)
    assert stopped.output_tokens == len(stopped.output_token_ids or []) == len(stopped.logprobs)
    assert stopped.output_tokens < 100 and stopped.cumulative_logprob is not None
    assert stopped.output_token_ids == (plain.output_token_ids or [])[: stopped.output_tokens]
    assert answers[kept.request_id].text == f"{stopped.text}{end}"
    assert (answers[late.request_id].output_tokens or 0) >= 90
    for one in answers.values():
        assert one.finished_at_s and one.last_token_at_s and one.finished_at_s >= one.last_token_at_s


def test_a_prompt_that_closed_the_thinking_is_answered_and_a_form_is_the_answers(thinker, asker):
    closed = replace(asker.ask("What is 9 + 4?"), rendered="<|assistant|> 1\n")
    [answer] = thinker.generate([closed])
    assert split(answer) == (None, "13")
    answer = answer_to(thinker, asker, "What is 9 + 4?", structured_outputs={"choice": ["cat", "dog"]})
    assert answer.reasoning == "" and answer.text in ("cat", "dog"), "with vLLM's parser the thinking is free"


@pytest.mark.parametrize("victim", [pytest.param("server", marks=pytest.mark.rare), "engine"])
def test_a_killed_server_is_replaced_and_nothing_is_left(kept, tiny_model, tmp_path, asker, victim):
    first = kept["server"].engine
    before = first._order.engine_generation

    def open_next(_: Sizes, changed: dict[str, Any], generation: int) -> HostedEngine:
        log = tmp_path / f"generation-{generation}.log"
        return open_server(tiny_model, log, args={**ONE_CORE, **changed}, engine_generation=generation)

    def kill() -> None:
        server = find_server(first.host_pid)
        (server if victim == "server" else find_core(server)).kill()

    requests = [asker.ask(f"What is {i} + {i}?", min_tokens=100, max_tokens=100) for i in range(40)]
    deaths = Deaths(kept["server"], open_next)
    with deaths.around(RecoveryPolicy(Sizes(window_requests=8)), before) as engine:
        answers = kill_after(engine.generate(requests), 5, kill)
        assert set(answers) == {request.request_id for request in requests}
        assert all(answer.error_kind is None and answer.output_tokens == 100 for answer in answers.values())
        assert {answer.engine_generation for answer in answers.values()} == {before, before + 1}
        assert deaths.failed["kind"] == "killed" or victim == "engine"  # whose exit code vLLM does not always tell
        wait_until_gone(first.host_pid)
    kept["server"].keep(deaths.opened[1])


STREAMS = 256


def test_no_request_is_lost_when_a_servers_engine_runs_out_of_memory(tiny_model, tmp_path, asker):
    """With that many streams in flight vLLM's server logs a lot, and does not answer health checks meanwhile."""
    fails = {"worker_extension_cls": "tests.host_kit.OutOfMemoryOnce", "kv_cache_memory_bytes": 2**28}
    args = {**ONE_CORE, "max_num_seqs": STREAMS, **fails}
    once = tmp_path / "once"
    env = engine_environment(Settings(), {"OMP_NUM_THREADS": "1"}, {"ASSAYLINE_FAILED_ONCE": str(once)})

    def open_one(sizes: Sizes, changed: dict[str, Any], generation: int) -> HostedEngine:
        log, changes = (
            tmp_path / f"{generation}.log",
            {"window": sizes.window_requests, "engine_generation": generation},
        )
        return open_server(tiny_model, log, args={**args, **changed}, env=env, **changes)

    deaths = Deaths(Kept(lambda: open_one(Sizes(window_requests=STREAMS), {}, 0)), open_one)
    requests = [asker.ask(f"What is {i} + {i}?", min_tokens=32, max_tokens=32) for i in range(STREAMS + 100)]
    with deaths.around(RecoveryPolicy(Sizes(window_requests=STREAMS)), 0) as adaptive, closing(adaptive):
        answers = by_id(adaptive.generate(requests))
    assert once.exists() and set(answers) == {request.request_id for request in requests}
    assert {answer.error_kind for answer in answers.values()} == {None}
    failed = deaths.failed
    assert failed["kind"] == "device_oom" and "CUDA out of memory" in failed["summary"]
    first, second = [event.details for event in deaths.events if event.event == "opened"]
    assert second["max_num_seqs"] == min(first["max_num_seqs"], failed["in_flight_requests"]) // 2
    assert (tmp_path / "0.log").stat().st_size < 2**18, "one traceback, not one for every stream"


@pytest.mark.parametrize("name", ["barrier", "async thinking"])
def test_a_killed_host_is_an_error_with_the_signals_name_after_what_had_finished(kept, asker, name):
    """Plain `LLM` waits forever. Long requests without an end, so that some are unanswered whenever it is killed."""
    with closing(kept[name].take()) as engine:
        short = [asker.ask() for _ in range(5)]
        long = (asker.ask(max_tokens=None, **UNENDED) for _ in itertools.count())
        answers = engine.generate(itertools.chain(short, long))
        assert [answer.reasoning or answer.text for answer in itertools.islice(answers, 5)] == ["7"] * 5
        os.kill(engine.host_pid, signal.SIGKILL)
        with pytest.raises(EngineError, match=r"(?s)died of signal SIGKILL.*\.log") as caught:
            list(answers)
        assert "Traceback" not in str(caught.value).splitlines()[0]
        with pytest.raises(EngineError, match="died of signal SIGKILL"):
            list(engine.generate([asker.ask()]))
    wait_until_gone(engine.host_pid)


def test_an_exception_leaves_no_process(kept, controls, asker):
    with pytest.raises(KeyError), closing(kept["thinking"].take()) as engine:
        assert os.getsid(engine.host_pid) == engine.host_pid != os.getsid(0)
        assert living_members(engine.host_pid)
        for _ in engine.generate(asker.ask(max_tokens=99, **UNENDED) for _ in range(20)):
            raise KeyError
    assert living_members(engine.host_pid) == []
    engine.close()
    assert engine._setup.log_path.read_text().splitlines()[0].strip() in controls["thinking"].lines


def test_nothing_is_left_of_a_server_that_is_closed(kept):
    with closing(kept["server"].take()) as engine:
        assert find_core(engine.host_pid).is_running()
    wait_until_gone(engine.host_pid)
    assert "vLLM" in engine._setup.log_path.read_text()


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


REFUSING = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--max-num-seqs", type=int)
parser.parse_known_args()
"""


def test_a_server_that_ends_while_it_starts_ends_the_start_and_its_words_are_kept(tiny_model, tmp_path):
    """A server that only looks at its arguments; what vLLM's own says of these is in test_vllm_itself.py."""
    package = tmp_path / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    (package / "api_server.py").write_text(REFUSING)
    for folder in (package, *package.parents[:2]):
        (folder / "__init__.py").touch()
    env = engine_environment(Settings(), {}, {"PYTHONPATH": str(tmp_path)})
    with pytest.raises(EngineDiedError) as raised:
        open_server(tiny_model, tmp_path / "bad.log", env=env, args={**ARGS, "max_num_seqs": "many"})
    assert "many" in raised.value.death.log
