"""The policy alone: which size follows from which death. No engine, no clock."""

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
from assayline.spec.engine import EngineSpec, RecoverySpec

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
    policy = RecoveryPolicy(sizes or Sizes(), RecoverySpec(**options))
    policy.opened({**OPENED, **(details or {})}, window)
    return policy


def died(kind: Kind, phase: str = "run", **numbers: Any) -> Cause:
    return Cause(kind, phase, str(kind), **numbers)


def ids(count: int, first: int = 0) -> list[str]:
    return [f"r{number}" for number in range(first, first + count)]


def changed(reaction: Any) -> dict[str, tuple[Any, Any]]:
    assert isinstance(reaction, Rebuild), reaction
    return {name: (change["from"], change["to"]) for name, change in reaction.changes.items()}


def test_out_of_device_memory_halves_the_window_and_leaves_room_next_to_the_cache():
    policy = opened()
    assert changed(policy.react(died(Kind.DEVICE_OOM), ids(80))) == {
        "window_requests": (80, 40),
        "max_num_seqs": (64, 32),
        "gpu_memory_utilization": (0.92, 0.87),
    }
    assert policy.changed_arguments == {"max_num_seqs": 32, "gpu_memory_utilization": 0.87}
    assert changed(policy.react(died(Kind.DEVICE_OOM), ids(40)))["window_requests"] == (40, 20)


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


def test_a_cache_of_a_given_size_keeps_it_and_its_share():
    policy = opened(sizes=Sizes(kv_cache_memory_bytes=2**30))
    assert changed(policy.react(died(Kind.DEVICE_OOM), ids(80))) == {
        "window_requests": (80, 40),
        "max_num_seqs": (64, 32),
    }


def test_the_next_window_follows_from_what_was_in_flight_when_that_was_less():
    policy = opened()
    assert changed(policy.react(died(Kind.HOST_OOM), ids(10))) == {"window_requests": (80, 5), "max_num_seqs": (64, 5)}


def test_after_the_window_the_tokens_of_a_step_then_the_search():
    policy = opened(window=2, details={"max_num_seqs": 2})
    assert changed(policy.react(died(Kind.HOST_OOM), ids(2))) == {"window_requests": (2, 1), "max_num_seqs": (2, 1)}
    # One prompt of 1,000 tokens in flight: only fewer tokens than that change anything.
    assert changed(policy.react(died(Kind.HOST_OOM), ids(1), 1000)) == {"max_num_batched_tokens": (8192, 500)}
    assert changed(policy.react(died(Kind.HOST_OOM), ids(1), 1000)) == {"max_num_batched_tokens": (500, 250)}
    assert changed(policy.react(died(Kind.HOST_OOM), ids(1), 1000)) == {"max_num_batched_tokens": (250, 125)}
    assert changed(policy.react(died(Kind.HOST_OOM), ids(1), 1000)) == {"max_num_batched_tokens": (125, 64)}
    assert policy.react(died(Kind.HOST_OOM), ids(1), 1000) == Isolate()


def test_short_prompts_alone_are_searched_at_once():
    policy = opened(window=1, details={"max_num_seqs": 1})
    assert policy.react(died(Kind.HOST_OOM), ids(1), 30) == Isolate()


def test_without_chunked_prefill_a_step_takes_whole_prompts():
    policy = opened(window=1, details={"max_num_seqs": 1, "enable_chunked_prefill": False})
    assert policy.react(died(Kind.HOST_OOM), ids(1), 4000) == Isolate()


@pytest.mark.parametrize(("runner", "reduced"), [("v1", "max_num_batched_tokens"), ("v2", "window_requests")])
def test_log_probabilities_of_prompts_grow_with_the_tokens_of_a_step_unless_they_come_in_chunks(runner, reduced):
    policy = opened(details={"model_runner": runner})
    reaction = policy.react(died(Kind.HOST_OOM), ids(80), 3000, prompt_logprobs=True)
    assert next(iter(changed(reaction))) == reduced


def test_the_window_stays_at_the_fewest_that_are_allowed():
    policy = opened(min_concurrency=30)
    assert changed(policy.react(died(Kind.HOST_OOM), ids(80)))["window_requests"] == (80, 40)
    assert changed(policy.react(died(Kind.HOST_OOM), ids(40)))["window_requests"] == (40, 30)
    assert policy.react(died(Kind.HOST_OOM), ids(30), 10) == Isolate()
    assert policy.window_requests == 30


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


def test_an_engine_that_opens_but_does_not_get_warm_is_final():
    assert isinstance(opened().react(died(Kind.START_FAILED, "start")), Stop)


def test_memory_that_came_back_is_asked_for_again_once():
    policy = RecoveryPolicy(Sizes())
    assert policy.react(died(Kind.MEMORY_TAKEN, "start", free_share=0.25, has_passed=True)) == Rebuild({})
    second = policy.react(died(Kind.MEMORY_TAKEN, "start", free_share=0.9, has_passed=True))
    assert changed(second) == {"gpu_memory_utilization": (None, 0.88)}, "the message has counted our own context"


def test_the_limit_of_the_utilization_is_lifted_when_memory_is_there():
    policy = RecoveryPolicy(Sizes())
    assert policy.lift_utilization() == {}
    policy.react(died(Kind.MEMORY_TAKEN, "start", free_share=0.25))
    policy.opened({**OPENED, "gpu_memory_utilization": 0.24}, 80)
    assert changed(Rebuild(policy.lift_utilization())) == {"gpu_memory_utilization": (0.24, 0.92)}
    assert changed(policy.react(died(Kind.NO_CACHE_ROOM, "start"))) == {"gpu_memory_utilization": (0.92, 0.97)}


def test_sizes_that_vllm_had_chosen_are_halved_though_the_engine_never_came_up():
    """On an H100, vLLM's own are 1,024 sequences and 16,384 tokens."""
    policy = RecoveryPolicy(Sizes())
    policy.resolved({**OPENED, "max_num_seqs": 1024, "max_num_batched_tokens": 16384})
    assert changed(policy.react(died(Kind.START_OOM, "start"))) == {
        "max_num_seqs": (1024, 512),
        "max_num_batched_tokens": (16384, 8192),
        "gpu_memory_utilization": (0.92, 0.87),
    }
    policy.resolved({})
    assert policy.changed_arguments["max_num_seqs"] == 512


def test_a_start_without_memory_shrinks_the_cache_to_one_request_and_then_the_rest():
    """On a CPU every engine has a KV cache of a known size, set by the user or by assayline."""
    policy = RecoveryPolicy(Sizes())
    policy.resolved({**OPENED, "kv_cache_memory_bytes": 1000, "min_kv_cache_bytes": 300})
    oom = died(Kind.START_OOM, "start")
    assert changed(policy.react(oom)) == {"kv_cache_memory_bytes": (1000, 500)}
    assert policy.changed_arguments == {"kv_cache_memory_bytes": 500}
    assert changed(policy.react(oom)) == {"kv_cache_memory_bytes": (500, 300)}
    assert changed(policy.react(oom)) == {"max_num_seqs": (64, 32), "max_num_batched_tokens": (8192, 4096)}


def test_a_cache_that_is_chosen_for_each_engine_is_not_passed_on():
    policy = opened(details={"kv_cache_memory_bytes": 1000})
    policy.resolved({**OPENED, "kv_cache_memory_bytes": 600})
    assert policy.changed_arguments == {}
    assert changed(policy.react(died(Kind.START_OOM, "start"))) == {"kv_cache_memory_bytes": (600, 300)}


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


def test_recovery_can_be_switched_off():
    assert isinstance(opened(enabled=False).react(died(Kind.DEVICE_OOM), ids(80)), Stop)


def test_reductions_are_undone_if_the_poison_request_was_there_each_time():
    policy = opened(window=8, details={"max_num_seqs": 8})
    before = policy.sizes
    for count in (8, 4, 2):
        policy.react(died(Kind.HOST_OOM), ids(count))
    assert policy.react(died(Kind.HOST_OOM), ["r0"], 10) == Isolate()
    assert changed(Rebuild(policy.isolated("r0")))["window_requests"] == (1, 8)
    assert policy.sizes == before


def test_the_reductions_stay_if_another_request_was_there():
    policy = opened(window=8, details={"max_num_seqs": 8})
    policy.react(died(Kind.HOST_OOM), ids(8))
    policy.react(died(Kind.HOST_OOM), ids(4, first=8))
    assert policy.isolated("r8") == {} and policy.window_requests == 2


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        (died(Kind.MEMORY_TAKEN, "start", free_share=0.5), {"gpu_memory_utilization": (None, 0.49)}),
        (died(Kind.CACHE_TOO_LARGE, "start", free_bytes=1000), {"kv_cache_memory_bytes": (None, 980)}),
        (died(Kind.NO_CACHE_ROOM, "start"), {"gpu_memory_utilization": (None, 0.97)}),
        (died(Kind.START_OOM, "start"),
         {"max_num_seqs": (None, 128), "max_num_batched_tokens": (None, 4096), "gpu_memory_utilization": (None, 0.87)}),
        (died(Kind.PROFILE_DISTURBED, "start"), {}),
    ],
)  # fmt: skip
def test_a_start_that_fails_is_answered_in_the_direction_that_its_message_calls_for(cause, expected):
    assert changed(RecoveryPolicy(Sizes()).react(cause)) == expected


def test_a_context_that_does_not_fit_gets_more_memory_then_the_length_that_does():
    policy = RecoveryPolicy(Sizes(max_model_len=8192))
    cause = died(Kind.LENGTH_TOO_LONG, "start", fitting_model_len=128)
    assert changed(policy.react(cause)) == {"gpu_memory_utilization": (None, 0.97)}
    assert changed(policy.react(cause)) == {"max_model_len": (8192, 128)}
    assert isinstance(policy.react(cause), Stop)


def test_memory_that_was_not_there_is_not_asked_for_again():
    policy = RecoveryPolicy(Sizes())
    policy.react(died(Kind.MEMORY_TAKEN, "start", free_share=0.5))
    assert "gpu_memory_utilization" not in changed(policy.react(died(Kind.NO_CACHE_ROOM, "start")))


@pytest.mark.parametrize("kind", [Kind.MODEL_TOO_LARGE, Kind.START_FAILED])
def test_failures_that_no_reduction_can_fix_stop_at_once(kind):
    assert isinstance(RecoveryPolicy(Sizes()).react(died(kind, "start")), Stop)


def test_vllms_own_choices_are_not_passed_back_to_it():
    policy = opened(sizes=Sizes(max_num_seqs=64))
    assert policy.sizes.max_num_batched_tokens == 8192
    assert policy.changed_arguments == {}


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


class TestOpenLoop:
    """No window bounds what runs: vLLM's max_num_seqs does, and is what is reduced."""

    def policy(self, **options: Any) -> RecoveryPolicy:
        policy = RecoveryPolicy(Sizes(), RecoverySpec(**options), has_window=False)
        policy.opened(OPENED, None)
        return policy

    def test_requests_in_flight_are_halved_when_there_is_no_window(self):
        policy = self.policy()
        assert changed(policy.react(died(Kind.HOST_OOM), ids(500))) == {"max_num_seqs": (64, 32)}
        assert changed(policy.react(died(Kind.HOST_OOM), ids(500))) == {"max_num_seqs": (32, 16)}
        assert changed(policy.react(died(Kind.HOST_OOM), ids(6))) == {"max_num_seqs": (16, 3)}
        assert policy.sizes.window_requests is None and policy.changed_arguments == {"max_num_seqs": 3}

    def test_policy_at_minimum_size_searches_the_poison_request_and_undoes_reductions(self):
        policy = self.policy(min_concurrency=32)
        policy.react(died(Kind.HOST_OOM), ids(70))
        for _ in range(7):
            policy.react(died(Kind.HOST_OOM), ids(1))
        assert policy.react(died(Kind.HOST_OOM), ids(1)) == Isolate()
        assert changed(Rebuild(policy.isolated("r0")))["max_num_seqs"] == (32, 64)


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
