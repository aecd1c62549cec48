"""The host's end of the channel: whole messages in their order, and nobody waits who should not."""

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from run_kit import PATIENCE_S

from assayline.engines.host import channel as channels
from assayline.engines.host.channel import HostChannel
from assayline.engines.messages import CHUNK_BYTES, Channel

LARGE = "x" * (8 * CHUNK_BYTES)
"""More than a socket holds."""


class Pair:
    """Both ends, and whether the host's end has asked for the end of its process group."""

    def __init__(self, ended: threading.Event) -> None:
        ours, theirs = socket.socketpair()
        self.ended = ended
        self.worker = Channel(ours)
        self.host = HostChannel(theirs.detach())


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    ended = threading.Event()

    def end_group() -> None:
        ended.set()
        if threading.current_thread().name != "end":
            raise SystemExit

    monkeypatch.setattr(channels, "end_group", end_group)
    pair = Pair(ended)
    yield pair
    pair.worker.close()
    assert ended.wait(PATIENCE_S)


def run(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def take(host: HostChannel, count: int) -> list[Any]:
    messages: list[Any] = []
    while len(messages) < count:
        messages += host.take(wait=True)
    return messages


def test_messages_arrive_whole_and_in_their_order(pair):
    sent = [0, LARGE, {"a": [1.5, None]}, LARGE + "y", "", *range(1000)]
    for message in sent:
        pair.worker.send(message)
    receiving = run(lambda: pair.worker.receive(PATIENCE_S))  # and sends the rest meanwhile
    assert take(pair.host, len(sent)) == sent
    pair.host.send("the end")
    receiving.join()
    assert pair.host.take(wait=False) == []


def test_a_worker_that_does_not_read_holds_nobody_up(pair):
    sent = [LARGE, "small", *(f"{number}{LARGE}" for number in range(5)), "last"]
    for message in sent:
        pair.host.send(message)  # the worker has read nothing
    pair.host.drain(0.05)
    assert [pair.worker.receive(PATIENCE_S) for _ in sent] == sent
    pair.host.drain(10)


def test_many_threads_send_whole_messages(pair):
    threads = [
        run(lambda name=name: [pair.host.send((name, n, "x" * 10_000)) for n in range(200)]) for name in range(4)
    ]
    found = [pair.worker.receive(PATIENCE_S)[:2] for _ in range(800)]
    assert [[n for of, n in found if of == name] for name in range(4)] == [list(range(200))] * 4
    for thread in threads:
        thread.join()


def test_a_message_of_an_own_thread_wakes_who_waits(pair):
    found: list[Any] = []
    for number in range(100):  # whichever of the two is first
        waiting = run(lambda: found.extend(pair.host.take(wait=True)))
        pair.host.put_own(number)
        waiting.join(PATIENCE_S)
    assert found == [*range(100)]


def test_a_worker_that_is_gone_ends_the_group(pair):
    assert not pair.ended.is_set()
    pair.worker.close()
    assert pair.ended.wait(PATIENCE_S)
    with pytest.raises(SystemExit):
        pair.host.take(wait=True)
    with pytest.raises(SystemExit):
        pair.host.send("to nobody")
