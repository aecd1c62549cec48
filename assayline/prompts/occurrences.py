"""Which of a run's rows is the nth with the same content, counted in little memory.

A million ids take 88 MB in a dict of Python integers, and 25 MB at most in this table of 8-byte numbers; only ids that
came twice are kept as objects. 64 bits of the digest are compared: among a million different prompts, the chance that
any two are taken for duplicates is 3 in 100 million, and then one of them has occurrence 1 instead of 0.
"""

from array import array

FIRST_SLOTS = 1024
FULLEST = 0.6
"""Share of used slots at which the table doubles: probes stay near two."""


class OccurrenceCounter:
    """Counts ids that are hexadecimal digests."""

    def __init__(self) -> None:
        self._slots = array("Q", [0]) * FIRST_SLOTS
        self._used_slots = 0
        self._repeats: dict[int, int] = {}

    def count(self, digest: str) -> int:
        """How often this digest was given before: 0 the first time."""
        key = int(digest[:16], 16) or 1  # 0 marks an empty slot
        if self._insert(key):
            return 0
        self._repeats[key] = self._repeats.get(key, 0) + 1
        return self._repeats[key]

    def _insert(self, key: int) -> bool:
        """Puts a key into the table. False if it was there."""
        slot = _find_slot(self._slots, key)
        if self._slots[slot]:
            return False
        self._slots[slot] = key
        self._used_slots += 1
        if self._used_slots > FULLEST * len(self._slots):
            self._double()
        return True

    def _double(self) -> None:
        doubled = array("Q", [0]) * (2 * len(self._slots))
        for key in self._slots:
            if key:
                doubled[_find_slot(doubled, key)] = key
        self._slots = doubled


def _find_slot(slots: "array[int]", key: int) -> int:
    """The key's slot, or the empty slot where it belongs. The length is a power of two."""
    mask = len(slots) - 1
    slot = key & mask
    while slots[slot] and slots[slot] != key:
        slot = (slot + 1) & mask
    return slot
