"""What a run asks of the place where its files are: bytes by key, and of several who make one key, one who made it.

A key is a path below the run, such as `claims/shard-000007`. Two places have all of this: a folder (`folder.py`), on
any file system that has O_EXCL, and an object store (`objects.py`), where a condition on a put says the same. There is
no lock and no rename in what workers ask of a place, as stores have neither.

Every method raises OSError, with a text that can stand in a sentence; FileNotFoundError where there is no such key.
"""

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import BinaryIO, Protocol


class Place(Protocol):
    """The files of one run."""

    @property
    def name(self) -> str:
        """Where this is, as people write it: a path or a URL."""
        ...

    is_far: bool
    """Whether each call takes a round trip, so that what may wait is asked less often."""

    @property
    def advice(self) -> str:
        """What a person does when it cannot be read or written, in a sentence."""
        ...

    def read(self, key: str) -> bytes:
        """What is in a file."""
        ...

    def read_many(self, folder: str, names: Iterable[str]) -> dict[str, bytes]:
        """What is in some files of a folder; those that cannot be read are left out."""
        ...

    def versions(self, folder: str, without: AbstractSet[str] = frozenset()) -> dict[str, object]:
        """Of the files in a folder, which are overwritten again and again, something that is another one each time.

        A store tells it by a list, a folder by what is in them, where those of `without` are not opened.
        """
        ...

    def exists(self, key: str) -> bool:
        """Whether there is such a file."""
        ...

    def create(self, key: str, content: bytes = b"") -> bool:
        """Makes a file that must not be there yet; False if it is. Of many who try at once, one gets True."""
        ...

    def note(self, key: str, content: bytes = b"", *, create: bool = True) -> None:
        """Makes or overwrites a small file: whoever opens it anew sees it. A crash of the machine may lose it.

        Without `create`, a file that is not there may be an error, and stays away.
        """
        ...

    def write(self, key: str, write: Callable[[BinaryIO], object]) -> None:
        """Makes or replaces a file durably, with what `write` writes: a reader, or a crash, finds all of it or none."""
        ...

    def names(self, folder: str, max_age_s: float = 0.0) -> list[str]:
        """The files in a folder, in no order; none, if there is no such folder.

        Who only shows something to people may take a list that is `max_age_s` old, where lists cost time.
        """
        ...

    def fetch(self, folder: str, names: Iterable[str]) -> list[Path]:
        """Files on this machine with the content of these, which nobody changes any more."""
        ...

    def share(self, key: str) -> None:
        """Takes in a file that was written to its path in the run's folder on this machine."""
        ...

    def move(self, key: str, new: str) -> None:
        """Renames a file. Only for one who is alone with it."""
        ...

    def clear(self, folder: str) -> None:
        """Leaves an empty folder."""
        ...

    def remove(self, key: str) -> None:
        """Removes a file, if it is there."""
        ...
