"""Who drives a run that is in an object store, where no kernel frees a lock.

`drivers/000001`, `drivers/000002`, …: whoever takes the run makes the next one, which one process alone can; the last
one counts. Its process shows that it is there by a beat, as workers do. Who sees the same beat for SILENCE_S of its own
clock may take the run; the one that was silent finds that out before it writes the manifest, and stops.
"""

import json
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from assayline.places.home import place_of
from assayline.places.place import Place
from assayline.runs.leases import LEFT, Beat

DRIVERS, DRIVER_BEATS = "drivers", "driver-beats"
BEAT_INTERVAL_S = 2.0
SILENCE_S = 30.0
"""After which a driver is taken for dead."""
POLLS_PER_SILENCE = 30
_dead: set[tuple[str, int]] = set()
"""Drivers that this process has found dead: nobody is waited for twice."""


@dataclass(frozen=True, slots=True)
class Driver:
    """This process's right to drive a run."""

    place: Place
    number: int
    beat: Beat

    def is_last(self) -> bool:
        """Whether nobody has taken the run since. Raises OSError."""
        return not self.place.exists(_key(self.number + 1))

    def release(self) -> None:
        """Says that this is the end. Safe to call twice."""
        self.beat.end()


def take_run(run_dir: Path, name: str) -> Driver | None:
    """Takes a run for this process, which is called `name`; None if somebody drives it. Raises OSError."""
    place = place_of(run_dir)
    last = _find_last(place)
    if last and _is_there(place, last):
        return None
    owner = uuid.uuid4().hex
    beat = Beat(run_dir, owner, BEAT_INTERVAL_S, folder=DRIVER_BEATS)
    beat.begin()
    try:
        if place.create(_key(last + 1), json.dumps({"owner": owner, "name": name}).encode()):
            return Driver(place, last + 1, beat)
    except BaseException:
        beat.end()
        raise
    beat.end()
    return None


def is_driven(run_dir: Path) -> bool:
    """Whether some process drives the run; where one was killed, the answer takes SILENCE_S. Raises OSError."""
    place = place_of(run_dir)
    last = _find_last(place)
    return bool(last) and _is_there(place, last)


def name_driver(run_dir: Path) -> str:
    """Who drives the run, or did last. Raises OSError."""
    place = place_of(run_dir)
    last = _find_last(place)
    return str(_read(place, last)["name"]) if last else "another process"


def _find_last(place: Place) -> int:
    return max((int(name) for name in place.names(DRIVERS) if name.isdigit()), default=0)


def _is_there(place: Place, number: int) -> bool:
    """Whether a driver's beat changes within SILENCE_S."""
    owner = _read(place, number)["owner"]
    first = _read_beat(place, owner)
    if first == LEFT or (place.name, number) in _dead:
        return False
    for _ in range(POLLS_PER_SILENCE):  # counted, as a process that was stopped meanwhile has seen nothing
        time.sleep(SILENCE_S / POLLS_PER_SILENCE)
        if (beat := _read_beat(place, owner)) != first:
            return beat != LEFT
    _dead.add((place.name, number))
    return False


def _read(place: Place, number: int) -> dict[str, str]:
    said: dict[str, str] = json.loads(place.read(_key(number)))
    return said


def _read_beat(place: Place, owner: str) -> bytes:
    return place.read_many(DRIVER_BEATS, [owner]).get(owner, LEFT)


def _key(number: int) -> str:
    return f"{DRIVERS}/{number:06d}"
