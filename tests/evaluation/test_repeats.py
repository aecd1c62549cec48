"""Repeats wait for their prompt's first answer, and the engine never for them."""

from collections.abc import Iterable, Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from run_kit import completion_of, plain_request

from assayline.evaluation.order import Repeats
from assayline.records import Completion, Request

MANY = 10**6


def name_requests(names: Iterable[str], **values: Any) -> Iterator[Request]:
    """Requests as a shard has them, from names such as `a/0`."""
    for name in names:
        prompt, _, repeat = name.partition("/")
        yield plain_request(name, prompt_id=prompt, repeat_index=int(repeat), **values)


def feed(repeats: Repeats, requests: Iterator[Request | None]) -> Iterator[Request | None]:
    """Return the requests that a dispatcher hands out; None in `requests`: there is nothing now."""
    is_open = True
    while is_open or repeats.held:
        new: Request | None = None
        while is_open and repeats.has_room and new is None:
            try:
                request = next(requests)
            except StopIteration:
                is_open = False
                break
            if request is None:
                break
            if not repeats.hold(request):
                new = request
        if new is None:
            new = repeats.release()
        if new is not None or is_open:
            yield new


def answer(name: str, output_tokens: int | None) -> Completion:
    return completion_of(name, output_tokens=output_tokens)


def take(requests: Iterator[Request | None], count: int) -> list[str | None]:
    taken = [next(requests) for _ in range(count)]
    return [request and request.request_id for request in taken]


def test_each_prompt_is_asked_once_then_the_unanswered_then_the_longest():
    repeats = Repeats(MANY)
    requests = feed(repeats, name_requests(["a/0", "a/1", "b/0", "b/1", "b/2", "c/0", "c/1", "d/0", "d/1"]))
    assert take(requests, 4) == ["a/0", "b/0", "c/0", "d/0"]
    repeats.settle(answer("b/0", 5))
    repeats.settle(answer("c/0", 50))
    assert take(requests, 1) == ["a/1"], "its first answer is being written: it is longer than those that ended"
    repeats.settle(answer("d/0", None))  # an error row: nobody knows, and it was short
    assert take(requests, 4) == ["c/1", "b/1", "b/2", "d/1"]
    assert list(requests) == []


def test_a_limit_counts_where_it_is_lower_than_the_first_answer():
    rows = [
        *name_requests(["a/0", "a/1"], sampling={"max_tokens": 9}),
        *name_requests(["b/0", "b/1"], sampling={"max_tokens": 90}),
    ]
    repeats = Repeats(MANY)
    requests = feed(repeats, iter(rows))
    assert take(requests, 2) == ["a/0", "b/0"]
    repeats.settle(answer("a/0", 40))
    repeats.settle(answer("b/0", 20))
    assert take(requests, 2) == ["b/1", "a/1"]


def test_requests_with_an_expected_length_or_options_are_not_deferred():
    known = list(name_requests(["a/0", "a/1", "a/2"], expected_output_tokens=7))
    options = [plain_request(f"b/{n}", prompt_id="b", option_index=n) for n in range(3)]
    assert list(feed(Repeats(MANY), iter([*known, *options]))) == [*known, *options]


@given(
    sizes=st.lists(st.integers(1, 5), max_size=12),
    gaps=st.sets(st.integers(0, 40)),
    most_held=st.sampled_from([0, 1, 2, 5, MANY]),
    seats=st.integers(1, 6),
    lengths=st.lists(st.one_of(st.none(), st.integers(0, 9)), min_size=1, max_size=8),
)
def test_every_request_comes_once_and_nothing_waits_while_there_is_something(sizes, gaps, most_held, seats, lengths):
    names = [f"{prompt}/{n}" for prompt, size in enumerate(sizes) for n in range(size)]
    came = 0

    def queue() -> Iterator[Request | None]:
        nonlocal came
        for place, request in enumerate(name_requests(dict.fromkeys(names, 0))):
            if place in gaps:
                yield None
            came += 1
            yield request

    repeats = Repeats(most_held)
    found: list[str] = []
    running: list[str] = []
    for request in feed(repeats, queue()):
        if request is None:
            assert came == len(found), "something was held while nothing was given"
        else:
            found.append(request.request_id)
            running.append(request.request_id)
            assert came - len(found) <= most_held
        if len(running) >= seats:
            name = running.pop(len(found) % len(running))
            repeats.settle(answer(name, lengths[len(found) % len(lengths)]))
    assert sorted(found) == sorted(names)
    if most_held == 0:
        assert found == names
