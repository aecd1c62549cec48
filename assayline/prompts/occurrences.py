"""How often a prompt was in its set before, over a million prompts in little memory."""

from array import array
from collections import Counter

BUCKETS = 2**16


class Occurrences:
    """Counts ids, of which 64 bits are compared: 16 MB for a million different ones.

    Among a million different prompts, the chance that any two are taken for duplicates is 3 in 100 million, and then
    one of them has occurrence 1 instead of 0.
    """

    def __init__(self) -> None:
        self._once: list[array[int] | None] = [None] * BUCKETS
        """Each id that was counted, once, by its last 16 bits: some fifteen a bucket in a million."""
        self._again: Counter[int] = Counter()
        """How often before, of those that came again."""

    def count_before(self, prompt_id: str) -> int:
        """How many have been counted before with this id (hexadecimal digits); this one is counted from now on."""
        key = int(prompt_id[:16], 16)
        if key not in self._again:
            bucket = self._once[key % BUCKETS]
            if bucket is None:
                bucket = self._once[key % BUCKETS] = array("Q")
            if key not in bucket:
                bucket.append(key)
                return 0
        self._again[key] += 1
        return self._again[key]
