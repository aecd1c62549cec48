"""The policy alone: which size follows from which death. No engine, no clock."""

import copy
from typing import Any

import pytest
from engine_kit import load_of
from hypothesis import given
from hypothesis import strategies as st

from assayline.engines.recovery.causes import Cause
from assayline.engines.recovery.policy import (
    MAX_STARTS,
    RESTART_PAUSES_S,
    STEADY_WINDOWS,
    Isolate,
    Rebuild,
    RecoveryPolicy,
    Sizes,
    Stop,
    choose_window,
)
from assayline.errors import MEMORY_KINDS, Kind
from assayline.load.progress import LoadProgress
from assayline.spec.engine import EngineSpec

OPENED = {
    "max_num_seqs": 64,
    "max_num_batched_tokens": 8192,
    "max_model_len": 4096,
    "gpu_memory_utilization": 0.92,
    "enable_chunked_prefill": True,
}


def opened(
    window: int = 80, sizes: Sizes | None = None, details: dict[str, Any] | None = None, **options: Any
) -> RecoveryPolicy:
    policy = RecoveryPolicy(sizes or Sizes(), **options)
    policy.opened({**OPENED, **(details or {})}, window)
    return policy


def died(kind: Kind, phase: str = "run", **numbers: Any) -> Cause:
    return Cause(kind, phase, str(kind), **numbers)


def ids(count: int, first: int = 0) -> list[str]:
    return [f"r{number}" for number in range(first, first + count)]


def changed(reaction: Any) -> dict[str, tuple[Any, Any]]:
    assert isinstance(reaction, Rebuild), reaction
    return {name: (change["from"], change["to"]) for name, change in reaction.changes.items()}


WINDOW, SEQS, STEP, SHARE = "window_requests", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization"
CACHE, LENGTH = "kv_cache_memory_bytes", "max_model_len"
HOST, DEVICE = died(Kind.HOST_OOM), died(Kind.DEVICE_OOM)
START = died(Kind.START_OOM, "start")
TOO_LONG = died(Kind.LENGTH_TOO_LONG, "start", fitting_model_len=128)


def resolved(**chosen: Any) -> RecoveryPolicy:
    """Before the first engine has opened, and with what vLLM has chosen for it."""
    policy = RecoveryPolicy(Sizes())
    policy.resolved({**OPENED, **chosen})
    return policy


def never_opened(**sizes: Any) -> RecoveryPolicy:
    return RecoveryPolicy(Sizes(**sizes))


def open_loop(**options: Any) -> RecoveryPolicy:
    """No window bounds what runs: vLLM's max_num_seqs does."""
    policy = RecoveryPolicy(Sizes(), **options, has_window=False)
    policy.opened(OPENED, None)
    return policy


def narrow(window: int, **details: Any) -> RecoveryPolicy:
    return opened(window=window, details={SEQS: window, **details})


DEATHS: dict[str, tuple[RecoveryPolicy, list[tuple[Cause, int, int, Any]], dict[str, Any]]] = {
    "device memory: a smaller window, and room next to the cache": (opened(), [
        (DEVICE, 80, 0, {WINDOW: (80, 40), SEQS: (64, 32), SHARE: (0.92, 0.87)}),
        (DEVICE, 40, 0, {WINDOW: (40, 20), SEQS: (32, 16), SHARE: (0.87, 0.82)}),
    ], {SEQS: 16, SHARE: 0.82}),
    "a cache of a given size keeps it and its share": (opened(sizes=Sizes(kv_cache_memory_bytes=2**30)), [
        (DEVICE, 80, 0, {WINDOW: (80, 40), SEQS: (64, 32)}),
    ], {SEQS: 32}),
    "what was in flight, when that was less": (opened(), [(HOST, 10, 0, {WINDOW: (80, 5), SEQS: (64, 5)})], {SEQS: 5}),
    # One prompt of 1,000 tokens in flight: only fewer tokens than that change anything.
    "after the window the tokens of a step, then the search": (narrow(2), [
        (HOST, 2, 0, {WINDOW: (2, 1), SEQS: (2, 1)}), (HOST, 1, 1000, {STEP: (8192, 500)}),
        (HOST, 1, 1000, {STEP: (500, 250)}), (HOST, 1, 1000, {STEP: (250, 125)}), (HOST, 1, 1000, {STEP: (125, 64)}),
        (HOST, 1, 1000, Isolate),
    ], {SEQS: 1, STEP: 64}),
    "short prompts alone are searched at once": (narrow(1), [(HOST, 1, 30, Isolate)], {}),
    "without chunked prefill a step takes whole prompts": (
        narrow(1, enable_chunked_prefill=False), [(HOST, 1, 4000, Isolate)], {}),
    "the fewest that are allowed": (opened(min_concurrency=30), [
        (HOST, 80, 0, {WINDOW: (80, 40), SEQS: (64, 32)}), (HOST, 40, 0, {WINDOW: (40, 30), SEQS: (32, 16)}),
        (HOST, 30, 10, Isolate),
    ], {SEQS: 16}),
    "an open loop": (open_loop(), [
        (HOST, 500, 0, {SEQS: (64, 32)}), (HOST, 500, 0, {SEQS: (32, 16)}), (HOST, 6, 0, {SEQS: (16, 3)}),
    ], {SEQS: 3}),
    "memory that came back is asked for again once": (never_opened(), [
        (died(Kind.MEMORY_TAKEN, "start", free_share=0.25, has_passed=True), 0, 0, {}),
        # The message has counted our own context.
        (died(Kind.MEMORY_TAKEN, "start", free_share=0.9, has_passed=True), 0, 0, {SHARE: (None, 0.88)}),
    ], {SHARE: 0.88}),
    # On an H100, vLLM's own are 1,024 sequences and 16,384 tokens.
    "sizes that vLLM had chosen": (resolved(max_num_seqs=1024, max_num_batched_tokens=16384), [
        (START, 0, 0, {SEQS: (1024, 512), STEP: (16384, 8192), SHARE: (0.92, 0.87)}),
    ], {SEQS: 512, STEP: 8192, SHARE: 0.87}),
    # On a CPU every engine has a KV cache of a known size, set by the user or by assayline.
    "the cache shrinks to one request, and then the rest": (
        resolved(kv_cache_memory_bytes=1000, min_kv_cache_bytes=300), [
            (START, 0, 0, {CACHE: (1000, 500)}), (START, 0, 0, {CACHE: (500, 300)}),
            (START, 0, 0, {SEQS: (64, 32), STEP: (8192, 4096)}),
        ], {CACHE: 300, SEQS: 32, STEP: 4096}),
    "memory that others have": (never_opened(), [
        (died(Kind.MEMORY_TAKEN, "start", free_share=0.5), 0, 0, {SHARE: (None, 0.49)}),
        (died(Kind.NO_CACHE_ROOM, "start"), 0, 0, {STEP: (None, 4096)}),
    ], {SHARE: 0.49, STEP: 4096}),
    "a cache that is too large": (never_opened(), [
        (died(Kind.CACHE_TOO_LARGE, "start", free_bytes=1000), 0, 0, {CACHE: (None, 980)}),
    ], {CACHE: 980}),
    "no room for a cache": (never_opened(), [
        (died(Kind.NO_CACHE_ROOM, "start"), 0, 0, {SHARE: (None, 0.97)}),
    ], {SHARE: 0.97}),
    "a start without memory": (never_opened(), [
        (START, 0, 0, {SEQS: (None, 128), STEP: (None, 4096), SHARE: (None, 0.87)}),
    ], {SEQS: 128, STEP: 4096, SHARE: 0.87}),
    "a start without memory at the fewest that are allowed": (
        RecoveryPolicy(Sizes(max_num_seqs=4), min_concurrency=4), [(START, 0, 0, Stop)], {}),
    "a start without memory or chunked prefill: a step holds the context": (
        opened(details={LENGTH: 6000, "enable_chunked_prefill": False}), [
            (START, 0, 0, {SEQS: (64, 32), STEP: (8192, 6000), WINDOW: (80, 32), SHARE: (0.92, 0.87)}),
        ], {SEQS: 32, STEP: 6000, SHARE: 0.87}),
    "a first engine that is killed as it starts is started once more": (never_opened(), [
        (died(Kind.KILLED, "start"), 0, 0, {}), (died(Kind.KILLED, "start"), 0, 0, Stop),
    ], {}),
    "a disturbed profile": (never_opened(), [(died(Kind.PROFILE_DISTURBED, "start"), 0, 0, {})], {}),
    "a context that does not fit: more memory, then the length that does": (never_opened(max_model_len=8192), [
        (TOO_LONG, 0, 0, {SHARE: (None, 0.97)}), (TOO_LONG, 0, 0, {LENGTH: (8192, 128)}), (TOO_LONG, 0, 0, Stop),
    ], {SHARE: 0.97, LENGTH: 128}),
    "a model that is too large": (never_opened(), [(died(Kind.MODEL_TOO_LARGE, "start"), 0, 0, Stop)], {}),
    "a start that no reduction can fix": (never_opened(), [(died(Kind.START_FAILED, "start"), 0, 0, Stop)], {}),
    "an engine that opens and does not get warm": (opened(), [(died(Kind.START_FAILED, "start"), 0, 0, Stop)], {}),
}  # fmt: skip
"""Deaths in their order, each with the requests in flight, the longest prompt and what follows: changes, or a kind of
reaction. And the arguments of the next engine; what vLLM chose itself is not passed back to it."""


@pytest.mark.parametrize("name", DEATHS)
def test_react_changes_the_size_that_a_death_calls_for(name):
    policy, deaths, arguments = copy.deepcopy(DEATHS[name])
    for cause, in_flight, longest, expected in deaths:
        reaction = policy.react(cause, ids(in_flight), longest)
        if isinstance(expected, dict):
            assert changed(reaction) == expected
        else:
            assert isinstance(reaction, expected)
    assert policy.changed_arguments == arguments


def test_sizes_that_vllm_chose_for_an_earlier_engine_are_not_passed_on():
    policy = opened(sizes=Sizes(max_num_seqs=64), details={CACHE: 1000})
    assert policy.sizes.max_num_batched_tokens == 8192 and policy.changed_arguments == {}
    policy = opened(details={CACHE: 1000})
    policy.resolved({**OPENED, CACHE: 600})
    assert policy.changed_arguments == {}
    assert changed(policy.react(START)) == {CACHE: (600, 300)}
    policy.resolved({})
    assert policy.changed_arguments == {CACHE: 300}


@pytest.mark.parametrize(("runner", "reduced"), [("v1", STEP), ("v2", WINDOW)])
def test_log_probabilities_of_prompts_grow_with_the_tokens_of_a_step_unless_they_come_in_chunks(runner, reduced):
    policy = opened(details={"model_runner": runner})
    assert next(iter(changed(policy.react(HOST, ids(80), 3000, prompt_logprobs=True)))) == reduced


def test_an_open_loop_at_its_minimum_searches_the_poison_request_and_undoes_reductions():
    policy = open_loop(min_concurrency=32)
    policy.react(HOST, ids(70))
    for _ in range(7):
        policy.react(HOST, ids(1))
    assert policy.react(HOST, ids(1)) == Isolate()
    assert changed(Rebuild(policy.isolated("r0")))[SEQS] == (32, 64)


TIGHT_WEIGHTS, TIGHT_PEAK = 0.885, 0.015
"""A model of 70B parameters in FP8 on 80 GB: shares of its memory for the weights, and for a step of 8,192 tokens."""


def test_out_of_memory_on_a_card_that_the_weights_fill_takes_back_the_room_and_keeps_the_smaller_window():
    policy = opened(window=1280, details={"max_num_seqs": 1024})
    policy.answered()
    deaths = 0
    while policy.window_requests > 80:  # the sampler runs out until few enough run at once
        deaths += 1
        reaction = policy.react(died(Kind.DEVICE_OOM), ids(policy.window_requests), 900)
        while policy.sizes.gpu_memory_utilization - TIGHT_WEIGHTS - TIGHT_PEAK <= 0:
            assert isinstance(reaction, Rebuild)
            deaths += 1
            reaction = policy.react(died(Kind.NO_CACHE_ROOM, "start"))
        assert isinstance(reaction, Rebuild)
        policy.opened(OPENED, None)
    assert deaths == 4 + 1, "one load without room for the cache shows that the share must stay"
    assert policy.changed_arguments == {"max_num_seqs": 64} and policy.sizes.gpu_memory_utilization == 0.92


def test_the_context_keeps_its_length_once_a_request_was_answered():
    long = {"max_model_len": 32768}
    cause = died(Kind.LENGTH_TOO_LONG, "start", fitting_model_len=19968)
    for answers in (0, 1):
        policy = opened(window=1280, details={"max_num_seqs": 1024, **long})
        for _ in range(answers):
            policy.answered()
        policy.react(died(Kind.DEVICE_OOM), ids(1280), 900)
        assert changed(policy.react(cause)) == {"gpu_memory_utilization": (0.87, 0.92)}
        if not answers:
            assert changed(policy.react(cause)) == {"max_model_len": (32768, 19968)}
            continue
        while isinstance(reaction := policy.react(cause), Rebuild):
            assert set(reaction.changes) == {"max_num_batched_tokens"}
        assert isinstance(reaction, Stop) and policy.sizes.max_model_len == 32768


def test_a_death_that_is_not_memory_is_answered_by_the_same_size_and_a_second_one_by_a_search():
    policy = opened()
    before = policy.sizes
    assert policy.react(died(Kind.OTHER), ids(80)) == Rebuild({})
    assert policy.sizes == before and policy.changed_arguments == {}
    assert policy.react(died(Kind.OTHER), ids(80)) == Isolate()
    assert policy.searched(has_found=False) is None
    policy.react(died(Kind.KILLED), ids(80))
    assert policy.react(died(Kind.KILLED), ids(80)) == Isolate()
    assert isinstance(policy.searched(has_found=False), Stop)


def test_search_that_finds_the_poison_request_does_not_count_as_fruitless():
    policy = opened()
    assert [policy.searched(has_found) for has_found in (False, True, False)] == [None, None, None]


@pytest.mark.parametrize("kind", [Kind.START_FAILED, Kind.MODEL_TOO_LARGE, Kind.STALLED])
def test_a_later_start_that_fails_for_another_reason_is_tried_again_after_growing_pauses(kind):
    policy = opened()
    policy.answered()
    pauses = [policy.react(died(kind, "start")) for _ in RESTART_PAUSES_S]
    assert pauses == [Rebuild({}, pause_s=pause_s) for pause_s in RESTART_PAUSES_S]
    assert sorted(RESTART_PAUSES_S) == list(RESTART_PAUSES_S)
    assert isinstance(policy.react(died(kind, "start")), Stop)


def test_an_answer_resets_the_pauses_between_failed_starts():
    policy = opened()
    for _ in range(5):
        policy.answered()
        assert policy.react(died(Kind.START_FAILED, "start")) == Rebuild({}, pause_s=RESTART_PAUSES_S[0])


def test_the_limit_of_the_utilization_is_lifted_when_memory_is_there():
    policy = RecoveryPolicy(Sizes())
    assert policy.lift_utilization() == {}
    policy.react(died(Kind.MEMORY_TAKEN, "start", free_share=0.25))
    policy.opened({**OPENED, "gpu_memory_utilization": 0.24}, 80)
    assert changed(Rebuild(policy.lift_utilization())) == {"gpu_memory_utilization": (0.24, 0.92)}
    assert changed(policy.react(died(Kind.NO_CACHE_ROOM, "start"))) == {"gpu_memory_utilization": (0.92, 0.97)}


def test_sustained_success_earns_another_engine():
    policy = opened(window=4)
    assert policy.react(died(Kind.KILLED), ids(4)) == Rebuild({})
    for _ in range(4 * STEADY_WINDOWS):
        policy.answered()
    assert policy.react(died(Kind.KILLED), ids(4)) == Rebuild({})


def test_policy_stops_after_50_crashes_without_an_answer():
    policy = opened(window=8)
    for _ in range(60):
        reaction = policy.react(died(Kind.HOST_OOM), ids(8))
    assert isinstance(reaction, Stop) and "50 engines in a row" in reaction.reason


@pytest.mark.parametrize(
    ("deaths", "killer", "is_restored"),
    [
        ([ids(8), ids(4), ids(2)], "r0", True),
        ([ids(8), ids(4, first=8)], "r8", False),
        ([ids(8), ids(4, first=8)], "r0", False),
        ([ids(8), ids(4, first=8), ids(2)], "r0", False),
    ],
    ids=["each time", "not at first", "not at last", "not between"],
)
def test_reductions_are_undone_if_the_poison_request_was_there_each_time(deaths, killer, is_restored):
    policy = opened(window=8, details={"max_num_seqs": 8})
    before = policy.sizes
    for in_flight in deaths:
        policy.react(died(Kind.HOST_OOM), in_flight)
    reduced = policy.sizes
    assert bool(policy.isolated(killer)) is is_restored
    assert policy.sizes == (before if is_restored else reduced) and reduced.window_requests == 8 >> len(deaths)


RUN_DEATH = st.tuples(st.sampled_from([Kind.DEVICE_OOM, Kind.HOST_OOM]), st.integers(0, 300), st.integers(0, 20000))
START_DEATH = st.builds(
    lambda kind, share, length: died(
        kind, "start", free_share=share, free_bytes=int(1e9 * share), fitting_model_len=length
    ),
    st.sampled_from(sorted(MEMORY_KINDS - {Kind.DEVICE_OOM, Kind.HOST_OOM})), st.floats(0, 1), st.integers(1, 10000),
)  # fmt: skip


@given(st.lists(RUN_DEATH, max_size=60), st.integers(1, 300), st.integers(1, 40), st.booleans(), st.booleans())
def test_any_row_of_deaths_ends_in_a_search_and_never_grows_anything(deaths, window, least, logprobs, chunked):
    policy = opened(window=window, min_concurrency=least, details={"enable_chunked_prefill": chunked})
    rebuilds = 0
    for kind, in_flight, longest in deaths:
        before = policy.sizes
        reaction = policy.react(died(kind), ids(in_flight), longest, prompt_logprobs=logprobs)
        after = policy.sizes
        assert all(
            getattr(after, name) <= getattr(before, name)
            for name in ("window_requests", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization")
        )
        assert after.window_requests >= min(least, window) and after.max_num_seqs >= 1
        assert after.max_num_batched_tokens >= after.max_num_seqs
        if isinstance(reaction, Rebuild):
            rebuilds += 1
            assert reaction.changes
        else:
            assert isinstance(reaction, Isolate | Stop) and after == before
    assert rebuilds <= 9 + 8


@given(st.lists(START_DEATH, min_size=MAX_STARTS + 1, max_size=40))
def test_any_row_of_failed_starts_ends(causes):
    policy = RecoveryPolicy(Sizes(max_model_len=8192))
    reactions = [policy.react(cause) for cause in causes]
    assert any(isinstance(reaction, Stop) for reaction in reactions)
    assert 0.1 <= (policy.sizes.gpu_memory_utilization or 0.92) <= 0.97


OPEN_LOOP = load_of({"kind": "constant", "rate_per_s": 2.0})
CLOSED_LOOP = load_of({"kind": "concurrency", "requests": 7})


@pytest.mark.parametrize(
    ("engine", "load", "window"),
    [
        ({}, LoadProgress(), None),
        ({"max_concurrency": 5}, LoadProgress(), 5),
        ({"mode": "barrier", "batch_size": 3, "max_concurrency": 5}, LoadProgress(), 3),
        ({"backend": "async", "max_concurrency": 5}, CLOSED_LOOP, 7),
        ({"backend": "async", "max_concurrency": 5}, OPEN_LOOP, None),
    ],
    ids=["left to the engine", "as the spec says", "a batch", "as the load says", "no limit in an open loop"],
)
def test_the_window_is_chosen_in_one_place(engine, load, window):
    assert choose_window(EngineSpec.model_validate(engine), load) == window
