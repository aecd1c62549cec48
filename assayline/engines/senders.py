"""Senders: several engine hosts that send to one running server, held as one, because one event loop fills a core.

Requests are dealt one by one. Each host sends its own at their due times, so together they follow the pattern exactly;
in a closed loop, each has a share of the window. If one host dies, all are lost.
"""

import select
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from assayline.engines.messages import Aborted, Beat, Finished, Generate, Opened, WarmUp
from assayline.engines.process import HostProcess
from assayline.errors import Death, Witness
from assayline.records import TelemetrySample

LOOK_S = 0.02
"""Longest wait before the hosts' sockets and logs are looked at again."""


class Senders:
    """Two or more hosts behind the methods of one `HostProcess`."""

    def __init__(self, hosts: Sequence[HostProcess]) -> None:
        self._hosts = list(hosts)
        self._held = [0] * len(hosts)
        """Requests of each host that it has not answered."""
        self._window: int | None = None
        self._replies: dict[int, Any] = {}
        self._samples: dict[int, TelemetrySample] = {}
        self._next = 0
        self.pid, self.log_path = hosts[0].pid, hosts[0].log_path

    @property
    def exit_code(self) -> int | None:
        """Exit code of the first host that has ended; None while all live."""
        return next((code for host in self._hosts if (code := host.exit_code) is not None), None)

    def send(self, message: Any) -> None:
        """Send a request to the host with the most room, a warm-up to the first, anything else to all."""
        match message:
            case Generate(window_requests=window):
                size = len(self._hosts)
                shares = [1 if window is None else (window + size - 1 - place) // size for place in range(size)]
                place = min((place for place in range(size) if shares[place]), key=lambda p: self._held[p] / shares[p])
                self._held[place] += 1
                self._window = window
                self._hosts[place].send(replace(message, window_requests=window and shares[place]))
            case WarmUp():
                self._hosts[0].send(message)
            case _:
                for host in self._hosts:
                    host.send(message)

    def receive(self, timeout_s: float = LOOK_S) -> Any | None:
        """Return the next message, or None after `timeout_s`. Raises EngineDiedError if a host is gone."""
        deadline = time.monotonic() + timeout_s
        while True:
            for _ in self._hosts:
                place = self._next = (self._next + 1) % len(self._hosts)
                message = self._hosts[place].receive(0.0)
                if message is not None and (merged := self._merge(place, message)) is not None:
                    return merged
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return None
            select.select(self._hosts, [], [], min(left_s, LOOK_S))

    def _merge(self, place: int, message: Any) -> Any | None:
        """Return a host's message as one of all; None until all have replied to a message that went to all."""
        match message:
            case Finished(rows):
                self._held[place] -= len(rows)
                return Finished([replace(row, window_requests=row.window_requests and self._window) for row in rows])
            case Beat(sample):
                self._samples[place] = sample
                samples = self._samples.values()
                in_flight = sum(one.in_flight_requests for one in samples)
                tokens = sum(one.output_tokens for one in samples)
                return Beat(replace(sample, in_flight_requests=in_flight, output_tokens=tokens))
            case Opened() | Aborted():
                self._replies[place] = message
                if len(self._replies) < len(self._hosts):
                    return None
                self._held, self._replies, self._samples = [0] * len(self._hosts), {}, {}
        return message

    def begin_run(self) -> None:
        for host in self._hosts:
            host.begin_run()

    def listen(self, on_log: Callable[[str], None]) -> None:
        for host in self._hosts:
            host.listen(on_log)

    def end(self, timeout_s: float) -> None:
        for host in self._hosts:
            host.end(timeout_s)

    def kill(self) -> None:
        for host in self._hosts:
            host.kill()

    def describe_death(self) -> str:
        return self._find_dead().describe_death()

    def evidence(self, exception: str = "", message: str = "", witness: Witness = Witness.EXCEPTION) -> Death:
        return self._find_dead().evidence(exception, message, witness)

    def _find_dead(self) -> HostProcess:
        return next((host for host in self._hosts if host.exit_code is not None), self._hosts[0])
