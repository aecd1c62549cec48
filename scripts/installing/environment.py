"""The virtual environment .venv: whether it is whole, and what is installed in it.

.venv/installed has a file per lock with a digest of it, and the folder that .venv was made in. .venv/unfinished is
there while something is installed: a call that finds it, with nobody at work, starts .venv anew.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from installing.lock_files import GROUPS, lock_path

ROOT = Path(__file__).resolve().parents[2]


class Environment:
    """A virtual environment in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"
        self._record = folder / "installed"
        self._mark = folder / "unfinished"

    def is_ready(self, groups: list[str]) -> bool:
        """Whether these groups of locks are installed, as they are now, and it works."""
        return not self.find_damage(groups) and all(self._read(group) == digest(group) for group in groups)

    def find_damage(self, groups: list[str]) -> str | None:
        """Why it must be made anew, or nothing. An environment that is not there is not damaged."""
        if not self.folder.exists():
            return None
        if self._mark.exists():
            return "the last set-up was interrupted"
        if not self.python.exists():
            return "its Python is gone"
        if (made_in := self._read("folder")) and made_in != str(self.folder):
            return f"it was made in {made_in} and moved here"
        other = {"cpu", "cuda"} - set(groups)
        if any((self._record / name).exists() for name in other):
            return f"it has vLLM for {other.pop()}, and this machine wants the other"
        command = [str(self.python), "-I", "-S", "-c", "import sys; print('python%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not (self.folder / "lib" / done.stdout.strip() / "site-packages").is_dir():
            return "its Python does not run, or is not the one that it was made with"
        return None

    def missing(self, groups: list[str]) -> list[str]:
        """Groups that are to be installed, or installed again."""
        return [group for group in groups if self._read(group) != digest(group)]

    def begin(self) -> None:
        """Marks it as unfinished, which outlives a kill."""
        self.folder.mkdir(exist_ok=True)
        self._mark.touch()

    def empty(self) -> None:
        """Takes everything out of it but the mark."""
        for path in self.folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path != self._mark:
                path.unlink()

    def end(self, group: str | None = None) -> None:
        """Takes the mark away: it is whole. Writes down the group that was installed, if one was."""
        self._record.mkdir(exist_ok=True)
        (self._record / "folder").write_text(str(self.folder), encoding="utf-8")
        if group:
            (self._record / group).write_text(digest(group), encoding="utf-8")
        self._mark.unlink()

    def _read(self, name: str) -> str | None:
        path = self._record / name
        return path.read_text(encoding="utf-8") if path.exists() else None


def digest(group: str) -> str:
    """Of everything that decides what a group installs."""
    files = [*(lock_path(name) for name in GROUPS[group]), ROOT / "pyproject.toml"]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


@contextmanager
def hold(path: Path, doing: str) -> Iterator[int]:
    """Holds a lock file, after whoever has it. Its descriptor is for children: one that outlives us keeps it held."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 20, 0).decode().strip() or "unknown"
            print(f"{doing}: another one (process {holder}) is at work in this folder; waiting for it", flush=True)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)
