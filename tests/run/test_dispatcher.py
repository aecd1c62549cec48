"""The dispatcher: who is asked what, in which order, and that each request has exactly one row in the end."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from run_kit import completion_of, fake_spec, request_of, write_shards

from assayline.errors import EngineError
from assayline.records import EARLIER_TURN, NOT_SENT, Completion, Request
from assayline.run.dispatcher import KILLED_WORKER, Dispatcher
from assayline.run.order import name_shard
from assayline.store.parts import list_parts, write_part


class Desk:
    """A dispatcher over the shards of a folder, and what it let through."""

    def __init__(
        self,
        run_dir: Path,
        workers: int = 1,
        answered: frozenset[str] = frozenset(),
        rows: list[Completion] | None = None,
        **spec: Any,
    ) -> None:
        self.rows: list[Completion] = [] if rows is None else rows
        self.dispatcher = Dispatcher(fake_spec(**spec), run_dir, self.rows.append, Echo)  # type: ignore[arg-type]
        self.dispatcher.workers = workers
        for part in list_parts(run_dir, "requests"):
            own = frozenset(pq.read_table(part, columns=["request_id"])["request_id"].to_pylist())
            self.dispatcher.add_shard(part, len(own), answered & own)
        self.dispatcher.close()

    def ask(self, worker: str = "worker-0", window: int | None = 4, finished: Any = ()) -> list[str]:
        rows = [completion_of(request_id) for request_id in finished]
        return [request.request_id for request in self.dispatcher.exchange(worker, rows, window)]

    def answer_all(self, worker: str = "worker-0", window: int = 4) -> list[str]:
        """Answers whatever it gets, one request after another; in which order it got them."""
        order, held = [], list[str]()
        while not self.dispatcher.is_over:
            new = self.ask(worker, window, held[:1])
            order += new
            held = held[1:] + new
            assert held or self.dispatcher.is_over
        return order


class Echo:
    """Renders a chat as the number of its messages."""

    max_model_len = None

    def render(self, messages: list[dict[str, Any]]) -> Any:
        from assayline.requests.chat import Rendered

        return Rendered(" / ".join(message["content"] for message in messages), [len(messages)], None)


def ids_of(rows: list[Completion]) -> list[str]:
    return [row.request_id for row in rows]


def test_exchange_hands_out_requests_in_the_order_of_their_shards(tmp_path):
    ids = write_shards(tmp_path, shards=3, per_shard=10)
    desk = Desk(tmp_path)
    assert desk.answer_all() == ids and sorted(ids_of(desk.rows)) == ids


def test_exchange_begins_with_the_shard_of_the_longest_answers(tmp_path):
    for number, weight in enumerate([5, 900, 30]):
        write_part(tmp_path, "requests", name_shard(number, weight), [request_of(number)])
    assert Desk(tmp_path).answer_all() == ["request-00001", "request-00002", "request-00000"]


def test_exchange_fills_the_window_and_a_surplus(tmp_path):
    ids = write_shards(tmp_path, shards=2, per_shard=100)
    desk = Desk(tmp_path)
    first = desk.ask(window=30)
    assert first == ids[:60], "a window in flight, and as many that are there when others finish"
    assert desk.ask(window=30) == []
    assert desk.ask(window=30, finished=first[:7]) == ids[60:67]


@pytest.mark.parametrize(("limits", "shards"), [({}, 25), ({"max_requests": 1500}, 15), ({"max_duration_s": 12.5}, 13)])
def test_exchange_of_an_open_loop_begins_when_all_that_it_can_send_is_prepared(tmp_path, limits, shards):
    """Then any number of requests may be in flight: only those that wait in the worker leave less room."""
    ids = write_shards(tmp_path, shards=shards, per_shard=100)
    load = {"arrival": {"kind": "constant", "rate_per_s": 100}, **limits}
    desk = Desk(tmp_path / "none", engine={"backend": "async"}, load=load)
    desk.dispatcher._is_closed = False
    for part in list_parts(tmp_path, "requests"):
        assert desk.ask(window=None) == []
        desk.dispatcher.add_shard(part, 100)
    if not limits:
        desk.dispatcher.close()
    assert [request for _ in range(3) for request in desk.ask(window=None)] == ids
    assert desk.dispatcher.exchange("worker-0", [], None, waiting=1024) == []


def test_exchange_gives_nothing_to_a_worker_without_an_engine(tmp_path):
    write_shards(tmp_path, shards=1, per_shard=5)
    desk = Desk(tmp_path)
    assert desk.ask(window=0) == [] and not desk.dispatcher.is_over


def test_exchange_shares_the_end_of_a_run_among_workers(tmp_path):
    """No worker sits on a surplus while another has less than its window."""
    ids = write_shards(tmp_path, shards=1, per_shard=100)
    desk = Desk(tmp_path, workers=4)
    shares = [len(desk.ask(f"worker-{number}", window=20)) for number in range(4)]
    assert shares == [20, 20, 20, 20]
    assert len(ids) - sum(shares) == 20
    assert sum(len(desk.ask(f"worker-{number}", window=20)) for number in range(4)) < 20, "some is left for the quick"


def test_exchange_gives_full_batches_in_mode_barrier_when_requests_come_slowly(tmp_path):
    desk = Desk(tmp_path, engine={"mode": "barrier"})
    desk.dispatcher._is_closed = False
    batches, held, made = list[int](), list[str](), 0
    while not desk.dispatcher.is_over:
        if made < 70:
            desk.dispatcher.add_shard(write_part(tmp_path, "requests", f"shard-{made:06d}", [request_of(made)]), 1)
            made += 1
        else:
            desk.dispatcher.close()
        given = desk.ask(window=32, finished=held[:8])
        batches += [min(32, len(given) - at) for at in range(0, len(given), 32)]
        held = held[8:] + given
    assert batches == [32, 32, 6]


def test_exchange_keeps_a_shard_on_one_worker_as_long_as_there_are_others(tmp_path):
    """Prompts with a common prefix are neighbors, and a prefix is cached by one engine."""
    ids = write_shards(tmp_path, shards=2, per_shard=40)
    desk = Desk(tmp_path, workers=2)
    assert desk.ask("worker-0", window=10) == ids[:20]
    assert desk.ask("worker-1", window=10) == ids[40:55]


def test_stop_hands_out_nothing_more_and_keeps_rows(tmp_path):
    ids = write_shards(tmp_path, shards=1, per_shard=30)
    desk = Desk(tmp_path)
    first = desk.ask()
    desk.dispatcher.stop()
    assert desk.ask(finished=first) == [] and ids_of(desk.rows) == first == ids[: len(first)]


def test_lose_hands_what_the_worker_held_to_others_first(tmp_path):
    ids = write_shards(tmp_path, shards=2, per_shard=20)
    desk = Desk(tmp_path, workers=2)
    lost = desk.ask("worker-0", window=4)
    desk.dispatcher.lose("worker-0")
    assert desk.ask("worker-1", window=10)[: len(lost)] == lost
    desk.ask("worker-0", window=0, finished=lost[:1])
    assert desk.rows == [], "a late answer has nobody waiting for it"
    desk.dispatcher.lose("worker-1")
    assert sorted(desk.answer_all("worker-2")) == ids and sorted(ids_of(desk.rows)) == ids


def test_lose_asks_a_request_alone_after_two_losses_and_never_after_three(tmp_path):
    ids = write_shards(tmp_path, shards=1, per_shard=9)
    desk = Desk(tmp_path, workers=1)
    for number in range(2):
        assert desk.ask(f"worker-{number}", window=3)[:3] == ids[:3]
        desk.dispatcher.lose(f"worker-{number}")
    given = desk.ask("worker-2", window=3)
    assert not set(given) & set(ids[:3]), "suspects wait until a worker has nothing else"
    assert sorted(given) == ids[3:]
    assert desk.ask("worker-2", window=3, finished=given) == [ids[0]], "alone"
    assert desk.ask("worker-2", window=3) == []
    assert desk.ask("worker-2", window=3, finished=[ids[0]]) == [ids[1]]
    desk.dispatcher.lose("worker-2")
    [row] = [row for row in desk.rows if row.error_kind]
    assert (row.request_id, row.error_kind) == (ids[1], KILLED_WORKER)
    assert "at the loss of 3 workers" in (row.error_message or "")
    assert desk.ask("worker-3", window=3) == [ids[2]]
    desk.ask("worker-3", window=3, finished=[ids[2]])
    assert sorted(ids_of(desk.rows)) == ids and desk.dispatcher.is_over


def test_lose_counts_what_was_in_flight_and_not_what_waited(tmp_path):
    ids = write_shards(tmp_path, shards=1, per_shard=8)
    desk = Desk(tmp_path)
    for number in range(3):
        assert set(desk.ask(f"worker-{number}", window=1)) >= set(ids[2:])
        desk.dispatcher.lose(f"worker-{number}")
    assert all(row.error_kind is None for row in desk.rows)


def test_lose_counts_what_was_in_flight_when_the_engine_had_ended(tmp_path):
    """A worker whose engine has ended reports a window of 0, and then its loss."""
    [killer] = write_shards(tmp_path, shards=1, per_shard=1)
    desk = Desk(tmp_path, max_error_share=1.0)
    for number in range(3):
        assert desk.ask(f"worker-{number}") == [killer]
        desk.ask(f"worker-{number}", window=0)
        desk.dispatcher.lose(f"worker-{number}")
    assert [row.error_kind for row in desk.rows] == [KILLED_WORKER]


def test_note_poison_request_ends_a_run_that_loses_too_many_requests(tmp_path):
    write_shards(tmp_path, shards=1, per_shard=20)
    desk = Desk(tmp_path, max_error_share=0.1)
    desk.dispatcher.note_killer("one")
    desk.dispatcher.note_killer("two")
    with pytest.raises(EngineError, match="3 requests killed their engines or workers, more than max_error_share"):
        desk.dispatcher.note_killer("three")


def conversation_of(number: int, turns: int) -> list[Request]:
    return [
        replace(
            request_of(10 * number + turn),
            prompt_id=f"prompt-{number}",
            turn_index=turn,
            turns=turns,
            prompt_token_ids=[1] if turn == 0 else [],
            turn_messages=[{"role": "user", "content": f"turn {turn}"}],
        )
        for turn in range(turns)
    ]


@pytest.mark.parametrize(
    ("kind", "left"), [("engine", EARLIER_TURN), (NOT_SENT, NOT_SENT)], ids=["error", "end of a load"]
)
def test_exchange_asks_a_turn_when_the_one_before_is_answered(tmp_path, kind, left):
    first, second = conversation_of(0, 3), conversation_of(1, 3)
    write_part(tmp_path, "requests", "shard-000000", [*first, *second])
    desk = Desk(tmp_path, workers=2)
    assert desk.ask("worker-0", window=9) == [first[0].request_id, second[0].request_id]
    [turn] = desk.dispatcher.exchange("worker-0", [completion_of(first[0].request_id, text="four")], 9)
    assert turn.request_id == first[1].request_id and turn.rendered == "turn 0 / four / turn 1"
    assert desk.ask("worker-1", window=9) == [], "the conversation stays with the worker that has its prefix"
    desk.dispatcher.lose("worker-0")
    assert desk.ask("worker-1", window=9) == [second[0].request_id, first[1].request_id]
    error = completion_of(first[1].request_id, error_kind=kind, error_message="no")
    assert desk.dispatcher.exchange("worker-1", [error], 9) == []
    [last] = [row for row in desk.rows if row.request_id == first[2].request_id]
    assert last.error_kind == left and not desk.dispatcher.is_over


class DispatcherMachine(RuleBasedStateMachine):
    """Workers that come, answer, answer twice or late, stall and die; resumes; requests that kill."""

    make_folder: Callable[[], Path]
    looked = 0
    stored: list[Completion]

    @initialize(
        shards=st.integers(0, 5),
        per_shard=st.integers(1, 12),
        poison=st.integers(0, 3),
        turns=st.booleans(),
        mode=st.sampled_from(["continuous", "barrier"]),
        seed=st.integers(0, 2**16),
    )
    def begin(self, shards: int, per_shard: int, poison: int, turns: bool, mode: str, seed: int) -> None:
        self.folder = type(self).make_folder()
        self.dice = random.Random(seed)
        self.spec: dict[str, Any] = {"max_error_share": 1.0, "engine": {"mode": mode}}
        self.ids = []
        for shard in range(shards):
            base = 1000 * shard
            if turns:
                requests = [r for n in range(per_shard) for r in conversation_of(100 * shard + n, 2)]
            else:
                requests = [request_of(base + n) for n in range(per_shard)]
            write_part(self.folder, "requests", f"shard-{shard:06d}", requests)
            self.ids += [request.request_id for request in requests]
        self.poison = frozenset(self.dice.sample(self.ids, min(poison, len(self.ids))))
        self.stored = []
        self.workers = 0
        self.resume()

    def resume(self) -> None:
        """A flow that was killed: what is stored is known, what was in flight is not."""
        self.desk = Desk(self.folder, 2, frozenset(ids_of(self.stored)), self.stored, **self.spec)
        self.losses: Counter[str] = Counter()
        self.held: dict[str, dict[str, Request]] = {}
        self.late: list[tuple[str, str]] = []

    @property
    def dispatcher(self) -> Dispatcher:
        return self.desk.dispatcher

    @rule()
    def join(self) -> None:
        if len(self.held) < 4:
            self.held[f"worker-{self.workers}"] = {}
            self.workers += 1

    @precondition(lambda self: self.held)
    @rule(window=st.integers(1, 6), share=st.floats(0, 1), is_double=st.booleans())
    def exchange(self, window: int, share: float, is_double: bool) -> None:
        worker = self.dice.choice(sorted(self.held))
        held = self.held[worker]
        if set(held) & self.poison:
            return self.lose(worker)
        done = list(held)[: round(share * len(held))]
        rows = [completion_of(request_id, text="4") for request_id in done for _ in range(1 + is_double)]
        if self.late and self.dice.random() < 0.3:
            owner, request_id = self.late.pop()
            rows += [completion_of(request_id, text="late")] if request_id not in held or owner == worker else []
            done += [request_id] if request_id in held and owner == worker else []
        given = self.dispatcher.exchange(worker, rows, window)
        for request_id in done:
            held.pop(request_id, None)
        held.update((request.request_id, request) for request in given)
        return None

    @precondition(lambda self: self.held)
    @rule()
    def die(self) -> None:
        self.lose(self.dice.choice(sorted(self.held)))

    def lose(self, worker: str) -> None:
        held = self.held.pop(worker)
        self.late += [(worker, request_id) for request_id in held]
        self.losses.update(list(held))
        self.dispatcher.lose(worker)

    @rule()
    def kill_flow(self) -> None:
        self.resume()

    @invariant()
    def no_request_has_two_owners_or_two_rows(self) -> None:
        owners = Counter(request_id for held in getattr(self, "held", {}).values() for request_id in held)
        assert all(count == 1 for count in owners.values())
        rows = Counter(ids_of(getattr(self, "stored", [])))
        assert all(count == 1 for count in rows.values()) and not set(rows) & set(owners)

    def teardown(self) -> None:
        """Left alone with steady workers, it ends, and every request has its row."""
        if not hasattr(self, "held"):
            return
        for _ in range(50 * (len(self.ids) + 5)):
            if self.dispatcher.is_over:
                break
            self.join()
            self.exchange(3, 1.0, False)
        assert self.dispatcher.is_over
        assert sorted(ids_of(self.stored)) == sorted(self.ids)

    @invariant()
    def only_what_was_lost_three_times_is_given_up(self) -> None:
        if not hasattr(self, "stored"):
            return
        for row in self.stored[self.looked :]:
            assert row.error_kind is None or self.losses[row.request_id] >= 3 or row.error_kind == EARLIER_TURN
        self.looked = len(self.stored)


def test_every_request_has_one_row_whatever_happens(tmp_path_factory):
    machine = DispatcherMachine
    machine.make_folder = staticmethod(lambda: tmp_path_factory.mktemp("dispatcher"))  # type: ignore[method-assign]
    quick = settings(
        max_examples=settings.default.max_examples * 3 // 10, stateful_step_count=40, report_multiple_bugs=False
    )
    run_state_machine_as_test(machine, settings=quick)
