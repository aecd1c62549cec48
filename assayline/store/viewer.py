"""The address of a running viewer, to which the end of a run links. It has no token: the viewer's browser has it."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from assayline.errors import StoreError
from assayline.files import MAKE_ROOM, write_text

NAME = "viewer.url"
"""File of the data folder with the address of the viewer that started last."""
CONNECT_S = 0.2


@contextlib.contextmanager
def announce_viewer(data_dir: Path, url: str) -> Iterator[None]:
    """Tell other processes the viewer's address during the block, if the folder can be written."""
    path = data_dir / NAME
    with contextlib.suppress(StoreError):
        write_text(path, url, MAKE_ROOM)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if path.read_text(encoding="utf-8") == url:
                path.unlink()


def find_viewer(data_dir: Path, run_id: str) -> str | None:
    """Return the URL of a run in the running viewer of this machine; None without one."""
    try:
        url = (data_dir / NAME).read_text(encoding="utf-8")
        address = urlsplit(url)
        socket.create_connection((address.hostname, address.port or 0), CONNECT_S).close()
    except (OSError, ValueError):
        return None
    return f"{url}/run?{urlencode({'run': run_id})}"
