"""A store's list of a folder, and what came since, without asking for all of it again.

A store tells a thousand names a request, in their order. Of a million parts that is a thousand requests at each look.
But a writer numbers its parts, so that each of its new ones comes after all its old ones: whoever knows the last one of
each writer asks what comes after it, and goes on after the next writer's last one. That is a request or so for each
writer, whatever it has written. Only who shows something to people, or will look again, may go by such a list: a name
that was given out of order is in the next complete one.
"""

import re
import time
from dataclasses import dataclass, field

from assayline.places.client import PAGE, Client

NUMBERED = re.compile(r"^(.+)-\d{6,}(-\d+(rows)?)?\.parquet$")
"""A part's name: its writer, its number, and maybe its rows or its weight."""


@dataclass(frozen=True)
class Listing:
    """The objects of a folder as of a moment. Two of them may share their sizes."""

    listed_s: float = float("-inf")
    sizes: dict[str, int] = field(default_factory=dict)
    """In bytes, by name."""
    last: dict[str, str] = field(default_factory=dict)
    """The last name of each writer."""

    def is_good_for(self, max_age_s: float) -> bool:
        """Whether it is not older than that."""
        return time.monotonic() - self.listed_s <= max_age_s

    def renew(self, client: Client, folder: str, *, is_complete: bool) -> "Listing":
        """The list of now; if it need not be complete, by as few requests as it takes. Raises OSError."""
        now_s = time.monotonic()
        if is_complete or len(self.last) >= len(self.sizes) / PAGE:
            found, last = dict(client.list_objects(folder)), {}
            before: dict[str, int] = {}
        else:
            found, last, before = self._list_new(client, folder), dict(self.last), self.sizes
        for name in found:
            writer = _writer_of(name)
            last[writer] = max(name, last.get(writer, ""))
        return Listing(now_s, before | found, last)

    def _list_new(self, client: Client, folder: str) -> dict[str, int]:
        found: dict[str, int] = {}
        after = ""
        while page := client.list_after(folder, after):
            for name, size in page:
                after = self.last.get(_writer_of(name), "")
                if name <= after:
                    break  # known, and so is all up to the writer's last one
                found[name] = size
                after = name
        return found


def _writer_of(name: str) -> str:
    numbered = NUMBERED.match(name)
    return numbered[1] if numbered else name
