"""The host's end of the channel: whole messages in their order, and nobody waits who should not."""

import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest
from run_kit import PATIENCE_S

from assayline.engines import messages
from assayline.engines.host import channel as channels
from assayline.engines.host.channel import CHUNK_BYTES, Channel

LARGE = "x" * (8 * CHUNK_BYTES)
"""More than a socket holds."""


class Pair:
    """Both ends, and whether the host's end has asked for the end of its process group."""

    def __init__(self, ended: threading.Event) -> None:
        ours, theirs = socket.socketpair()
        self.ended = ended
        self.worker = Connection(ours.detach())
        self.host = Channel(theirs.detach())


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


def take(host: Channel, count: int) -> list[Any]:
    messages: list[Any] = []
    while len(messages) < count:
        messages += host.take(wait=True)
    return messages


def test_messages_arrive_whole_and_in_their_order(pair):
    sent = [0, LARGE, {"a": [1.5, None]}, LARGE + "y", "", *range(1000)]
    sender = run(lambda: [pair.worker.send(message) for message in sent])
    assert take(pair.host, len(sent)) == sent
    sender.join()
    assert pair.host.take(wait=False) == []


def test_a_message_of_more_than_two_gigabytes_has_a_longer_head(pair, monkeypatch):
    monkeypatch.setattr(messages, "_LARGEST_SHORT", 100)
    pair.host.put("x" * 1000)
    assert pair.worker.recv() == "x" * 1000
    os.write(pair.worker.fileno(), struct.pack("!iQ", -1, 5) + b"\x80\x05K\x07.")
    assert take(pair.host, 1) == [7]


def test_a_worker_that_does_not_read_holds_nobody_up(pair):
    sent = [LARGE, "small", *(f"{number}{LARGE}" for number in range(5)), "last"]
    for message in sent:
        pair.host.put(message)  # the worker has read nothing
    pair.host.close(0.05)
    assert [pair.worker.recv() for _ in sent] == sent
    pair.host.close(10)


def test_many_threads_send_whole_messages(pair):
    threads = [run(lambda name=name: [pair.host.put((name, n, "x" * 10_000)) for n in range(200)]) for name in range(4)]
    found = [pair.worker.recv()[:2] for _ in range(800)]
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


def test_channel_keeps_messages_read_ahead_for_a_busy_engine(pair):
    sender = run(lambda: [pair.worker.send(LARGE) for _ in range(3)])
    while sender.is_alive():
        pair.host.read_ahead()
    assert pair.host.take(wait=False) == [LARGE] * 3
    found: list[Any] = []
    waiting = run(lambda: found.extend(pair.host.take(wait=True)))
    pair.worker.send("more")
    while waiting.is_alive():
        pair.host.read_ahead()  # in either order, the waiting one gets it
        waiting.join(0.01)
    assert found == ["more"]


def test_a_worker_that_is_gone_ends_the_group(pair):
    assert not pair.ended.is_set()
    pair.worker.close()
    assert pair.ended.wait(PATIENCE_S)
    with pytest.raises(SystemExit):
        pair.host.take(wait=True)
    with pytest.raises(SystemExit):
        pair.host.put("to nobody")
