"""Who drives a run, where no lock reaches from one machine to another: in an object store, and in many shared folders.

`drivers/000001`, `drivers/000002`, …: whoever takes the run makes the next one, which one process alone can; the last
one counts. Its process shows that it is there by a beat, as workers do. Who sees the same beat for SILENCE_S of its own
clock may take the run; the one that was silent finds that out before it writes the manifest, and stops. Nobody waits
for one that ran on this machine and no longer has the run's lock (`locks.py`): the kernel knows that it has ended.
"""

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from assayline.clock import UNKNOWN, boot_id
from assayline.places.home import place_of
from assayline.places.place import Place
from assayline.runs.leases import LEFT, Beat

DRIVERS, DRIVER_BEATS = "drivers", "driver-beats"
BEAT_INTERVAL_S = 2.0
SILENCE_S = 30.0
"""After which a driver is taken for dead."""
POLLS_PER_SILENCE = 30
ANOTHER = "another process"
TAKEN = b"taken\n"
"""Before what a driver says of itself, once another one has the run."""
_dead: set[tuple[str, int]] = set()
"""Drivers that this process has found dead: nobody is waited for twice."""


@dataclass(frozen=True, slots=True)
class Driver:
    """This process's right to drive a run."""

    place: Place
    number: int
    beat: Beat

    def is_last(self) -> bool:
        """Whether nobody has taken the run since. Raises OSError.

        A network file system may not show a new file for a minute, but what is in one that is opened anew.
        """
        return not self.place.read(_key(self.number)).startswith(TAKEN) and not self.place.exists(_key(self.number + 1))

    def release(self) -> None:
        """Says that this is the end. Safe to call twice."""
        self.beat.end()


def take_run(run_dir: Path, name: str, *, has_lock: bool) -> Driver | None:
    """Takes a run for this process, which is called `name`; None if somebody drives it. Raises OSError.

    `has_lock`: whether no other process of this machine can be driving it.
    """
    place = place_of(run_dir)
    last = _find_last(place)
    if last and _is_there(place, last, has_lock=has_lock):
        return None
    owner = uuid.uuid4().hex
    beat = Beat(run_dir, owner, BEAT_INTERVAL_S, folder=DRIVER_BEATS)
    beat.begin()
    try:
        said = {"owner": owner, "name": name, "boot": boot_id()}
        if place.create(_key(last + 1), json.dumps(said).encode()):
            if last:
                place.note(_key(last), TAKEN + json.dumps(_read(place, last)).encode())
            return Driver(place, last + 1, beat)
    except BaseException:
        beat.end()
        raise
    beat.end()
    return None


def is_driven(run_dir: Path, *, has_lock: bool) -> bool:
    """Whether some process drives the run; where one was killed, the answer may take SILENCE_S. Raises OSError."""
    place = place_of(run_dir)
    last = _find_last(place)
    return bool(last) and _is_there(place, last, has_lock=has_lock)


def name_driver(run_dir: Path) -> str:
    """Who drives the run, or did last. Raises OSError."""
    place = place_of(run_dir)
    last = _find_last(place)
    return _read(place, last).get("name", ANOTHER) if last else ANOTHER


def _find_last(place: Place) -> int:
    return max((int(name) for name in place.names(DRIVERS) if name.isdigit()), default=0)


def _is_there(place: Place, number: int, *, has_lock: bool) -> bool:
    """Whether a driver's beat changes within SILENCE_S."""
    said = _read(place, number)
    if has_lock and UNKNOWN != said.get("boot", UNKNOWN) == boot_id():
        return False
    first = _read_beat(place, said)
    if first == LEFT or (place.name, number) in _dead:
        return False
    for _ in range(POLLS_PER_SILENCE):  # counted, as a process that was stopped meanwhile has seen nothing
        time.sleep(SILENCE_S / POLLS_PER_SILENCE)
        said = said or _read(place, number)
        if (beat := _read_beat(place, said)) != first:
            return beat != LEFT
    _dead.add((place.name, number))
    return False


def _read(place: Place, number: int) -> dict[str, str]:
    """What a driver said of itself; nothing, if it is being written, or its writer was killed in the middle."""
    try:
        said: dict[str, str] = json.loads(place.read(_key(number)).removeprefix(TAKEN))
    except ValueError:
        return {}
    return said


def _read_beat(place: Place, said: Mapping[str, str]) -> bytes:
    """The beat of a driver that said who it is; else there is none to be seen, which is no leaving."""
    owner = said.get("owner")
    return place.read_many(DRIVER_BEATS, [owner]).get(owner, LEFT) if owner else b""


def _key(number: int) -> str:
    return f"{DRIVERS}/{number:06d}"
