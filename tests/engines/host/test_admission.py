"""Which requests begin, and which wait, where the KV cache would not hold their answers to the end."""

import random

import pytest
from stub_vllm import StubEngine, install

from assayline.clock import RunClock
from assayline.engines.host import admission
from assayline.engines.host.admission import FIRST_GROUPS, GROUP_STEPS, Admission, Asked, Running, StepCost
from assayline.engines.host.vllm.offline_core import VllmCore
from assayline.engines.messages import Generate, Open, Opened
from assayline.records import Completion, Request

KNOWN_STEPS = GROUP_STEPS * FIRST_GROUPS


def ask(name: str, prompt_tokens: int, expected_tokens: int | None) -> Asked:
    return Asked(name, prompt_tokens, expected_tokens)


def hold(blocks: int, *asked: tuple[str, int, int | None], seats: int = 64) -> Admission:
    """A cache of so many blocks of 16 tokens, and requests that came for it."""
    held = Admission(blocks, 16, seats)
    for one in asked:
        held.hold(ask(*one))
    return held


def begin(held: Admission, **told: int) -> list[str]:
    return [asked.request_id for asked in held.begin(**told)]


def test_what_fits_to_its_end_begins_and_the_rest_waits() -> None:
    # One block each at first. When mid ends, it has 6 and long 6; when long ends, it has 11.
    held = hold(11, ("long", 16, 160), ("mid", 16, 80), ("short", 16, 16))
    assert begin(held) == ["long", "short"], "10 blocks are free beside long's prompt, but only 5 when mid ends"
    assert held.is_on
    for _ in range(90):
        held.count_step(0.01)
    held.end("short")
    assert begin(held) == [], "mid would end beside long's last blocks"
    for _ in range(70):
        held.count_step(0.01)
    held.end("long")
    assert begin(held) == ["mid"]


def test_one_that_fits_nowhere_begins_alone() -> None:
    held = hold(4, ("huge", 16, 900), ("small", 16, 16))
    assert begin(held) == ["huge"], "vLLM says what it cannot take"
    held.end("huge")
    assert begin(held) == ["small"]


def test_seats_bound_what_begins() -> None:
    held = hold(9, ("a", 16, 10), ("b", 16, 90), ("c", 16, 20), seats=2)
    assert begin(held) == ["a", "b"]


def test_nothing_is_held_where_all_fit_to_their_ends() -> None:
    asked = (("a", 16, 10), ("b", 16, 90), ("c", 16, 20))  # 2 + 7 + 3 blocks at their ends
    held = hold(12, *asked, seats=2)
    assert begin(held) == ["a", "b", "c"], "vLLM's own queue is as good"
    held.end("a")
    held.hold(ask("d", 16, 30))
    assert begin(held) == [], "it takes one block more than a did"


@pytest.mark.parametrize("expected_tokens", [None, 0])
def test_nothing_is_held_without_a_length(expected_tokens: int | None) -> None:
    held = hold(2, *((name, 16, expected_tokens) for name in "abc"))
    assert begin(held) == ["a", "b", "c"]
    assert not held.is_on


def test_an_unknown_length_is_taken_for_the_mean_of_the_known() -> None:
    # The mean of 16 and 144 is 80 tokens: 6 blocks at its end, beside long's 6 by then.
    lengths = (("long", 16, 144), ("short", 16, 16), ("unknown", 16, None))
    assert begin(hold(11, *lengths)) == ["long", "short"]
    assert begin(hold(12, *lengths)) == ["long", "short", "unknown"]


def test_answers_alike_are_not_held() -> None:
    held = hold(20, *((str(number), 16, 100 + number) for number in range(10)))
    assert len(begin(held)) == 10
    assert not held.is_on, "they would begin together and end together"


def pass_steps(held: Admission, token_steps: float) -> None:
    """Until the cost is known: one request of a token each step, others that begin and end beside it."""
    dice = random.Random(0)
    for number in range(4 * KNOWN_STEPS):
        more = dice.randrange(16)
        held.hold(ask(f"{number}", more + 1, 1))
        held.begin()
        tokens = len(held._begun) + held._begun_tokens
        held.end(f"{number}")
        held._begun_tokens, held._begun = tokens - 1, {"it": ask("it", 1, 1)}
        held.count_step(0.01 * (1 + token_steps * tokens))


@pytest.mark.parametrize(("token_steps", "is_on"), [(1 / 400, False), (0.06, True)], ids=["as a GPU", "as a CPU"])
def test_it_holds_where_a_token_costs_much_beside_its_step(token_steps: float, is_on: bool) -> None:
    held = hold(1000, ("long", 16, 2000), ("short", 16, 10))
    held.begin()
    assert held.is_on, "the cost is not known yet"
    pass_steps(held, token_steps)
    assert held.cost.token_steps == pytest.approx(token_steps, rel=0.2)
    held.hold(ask("huge", 16, 20_000))
    held.hold(ask("next", 16, 20_000))
    assert begin(held) == ([] if is_on else ["huge", "next"])


def test_a_cost_is_found_through_noise_and_a_stall() -> None:
    dice, cost = random.Random(1), StepCost()
    for number in range(KNOWN_STEPS):
        assert cost.token_steps is None
        tokens = 8 + 40 * (number // GROUP_STEPS % 5)
        cost.add(tokens, 0.02 * (1 + 0.01 * tokens) * dice.uniform(0.9, 1.1) + (5.0 if number == 40 else 0.0))
    assert cost.token_steps == pytest.approx(0.01, rel=0.15)


def test_steps_of_as_many_tokens_tell_no_cost() -> None:
    cost = StepCost()
    for _ in range(2 * KNOWN_STEPS):
        cost.add(8, 0.01)
    assert cost.token_steps is None


def test_steps_that_take_as_long_whatever_they_compute_cost_nothing_by_the_token() -> None:
    cost = StepCost()
    for number in range(KNOWN_STEPS):
        cost.add(number, 0.5 - number / 1000)
    assert cost.token_steps == 0


def test_a_group_with_tokens_that_nobody_counted_is_forgotten() -> None:
    counted, cost = StepCost(), StepCost()
    for number in range(KNOWN_STEPS):
        for one in (counted, cost):
            one.add(number, 0.01 * (1 + 0.1 * number))
        if number % GROUP_STEPS == 3:
            cost.add(1, 9.0)  # a preempted request's tokens were computed again
            cost.forget_group()
    assert counted.token_steps == pytest.approx(0.1, rel=0.01)
    assert cost.token_steps is None, "too few groups are left"


def test_who_was_preempted_after_all_goes_first() -> None:
    held = hold(16, ("a", 16, 200), ("b", 16, 20))
    assert begin(held) == ["a", "b"]
    held.hold(ask("c", 16, 10))
    assert begin(held, used_blocks=3, waiting_requests=1) == []
    assert begin(held, used_blocks=3, waiting_requests=0) == ["c"]


def test_shared_prefixes_leave_more_room() -> None:
    # 33 blocks each by their prompts; what the engine says it uses is less, as they share 32
    held = hold(70, ("a", 512, 100), ("b", 512, 10), ("c", 512, 100))
    assert begin(held, used_blocks=0) == ["a", "b"]
    held.count_step(0.01)
    assert begin(held, used_blocks=34, waiting_requests=0) == ["c"]


def test_one_that_was_passed_too_often_makes_the_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "PATIENCE_REQUESTS", 3)
    held = hold(16, ("running", 16, 100), ("large", 150, 50))
    assert begin(held) == ["running"]
    for number in range(10):
        held.hold(ask(f"{number}", 16, 10))
        if not begin(held):
            break
        held.end(f"{number}")
    assert number == 3
    held.end("running")
    assert begin(held)[0] == "large"


def test_an_answer_longer_than_expected_is_taken_to_go_on() -> None:
    held = hold(8, ("late", 16, 16), ("other", 16, 64))
    assert begin(held) == ["late", "other"]
    held.end("other")
    for _ in range(64):
        held.count_step(0.01)
    held.hold(ask("next", 16, 64))  # late has 5 blocks, and 16 tokens to go: 6 beside the 2 of next by then
    assert begin(held) == ["next"]
    held.hold(ask("third", 16, 20))
    assert begin(held) == [], "it would be the ninth block"


def test_a_peak_is_that_of_every_step() -> None:
    dice = random.Random(3)
    for _ in range(200):
        running, sizes = Running(16), []
        for _ in range(dice.randint(0, 6)):
            sizes.append((dice.randint(0, 90), dice.randint(1, 120)))
            running.add(*sizes[-1])
        one = (dice.randint(0, 90), dice.randint(1, 120))
        assert running.find_peak(*one) == play_peak([*sizes, one])


def play_peak(sizes: list[tuple[int, int]]) -> int:
    """Every step, one after the other."""
    last = max(left for _, left in sizes)
    uses = (sum(-(-(now + step) // 16) for now, left in sizes if left >= step) for step in range(1, last + 1))
    return max(uses)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> StubEngine:
    """Its cache holds 11 blocks of 16 tokens."""
    return install(monkeypatch, Opened(4, 64, {"kv_cache_tokens": 16 * 12, "block_size_tokens": 16}))


def open_core(holds_back: bool = True) -> VllmCore:
    return VllmCore(Open(backend="offline", model="m", clock=RunClock.start(), holds_back=holds_back))


def add(core: VllmCore, name: str, output_tokens: int, expected_tokens: int | None) -> Completion | None:
    sampling = {"max_tokens": output_tokens}
    request = Request(name, "", 0, 0, [1] * 16, sampling, expected_output_tokens=expected_tokens)
    return core.add(Generate(request, 0.0, 5))


def add_three(core: VllmCore) -> None:
    add(core, "long", 160, 160)
    add(core, "mid", 80, 500)  # it cannot be longer than max_tokens
    add(core, "short", 16, 16)


def test_an_engine_answers_what_was_held_and_says_since_when_it_waited(engine: StubEngine) -> None:
    core = open_core()
    add_three(core)
    assert (core.in_flight, core.find_wait_s(), core.sample().waiting_requests) == (3, 0.0, 3)
    answers = []
    while core.in_flight:
        answers += core.step()
    assert [answer.request_id for answer in answers] == ["short", "long", "mid"]
    assert engine.ran[0] == ["long", "short"] and engine.ran[160] == ["mid"]
    assert core.steps == 240 and core.find_wait_s() is None
    [mid] = [answer for answer in answers if answer.request_id == "mid"]
    assert mid.queued_at_s is not None, "since it came, not since it began"


def test_an_engine_that_is_told_to_holds_nothing(engine: StubEngine) -> None:
    core = open_core(holds_back=False)
    add_three(core)
    assert list(engine.left) == ["long", "mid", "short"]


def test_a_warm_up_is_not_held_and_leaves_nothing_behind(engine: StubEngine) -> None:
    core = open_core()
    core.warm_up(Request("warm-up", "", 0, 0, [1] * 16, {"max_tokens": 2}))
    assert (core.steps, core.in_flight) == (0, 0)
    add_three(core)
    core.step()
    assert engine.ran[-1] == ["long", "short"]


def test_what_was_held_is_aborted_too(engine: StubEngine) -> None:
    core = open_core()
    add_three(core)
    core.step()
    core.abort_all()
    assert (core.in_flight, core.find_wait_s(), engine.left) == (0, None, {})
    add_three(core)
    core.step()
    assert engine.ran[-1] == ["long", "short"]


def test_what_vllm_refuses_is_a_row_and_takes_no_room(engine: StubEngine) -> None:
    core = open_core()
    engine.refused = {"long"}
    add_three(core)
    [refused] = core.step()
    assert (refused.request_id, refused.error_message) == ("long", "long is too long")
    core.step()
    assert engine.ran[-1] == ["short", "mid"]
    assert core.in_flight == 2
