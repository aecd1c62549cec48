"""Orphans: engine processes whose worker is gone, and which would keep a device's memory forever.

An engine host ends itself when its worker dies. But a host may be killed together with its worker, and vLLM's own
processes, where it has any, then live on. So a host notes its session beside each lock of its device: whoever holds
those locks owns the device, and what else still runs in a session noted there is nobody's. (vLLM's processes overwrite
their environment and their names, but their session stays.)

Numbers of sessions mean something only where they were given: a note from before a restart, or from another container
that shares the folder of locks, is left alone, and so is every session that no host of ours can have, such as 0, which
is what a container's own processes see when their session was begun outside of it. As every user can write into that
folder, each has notes of their own and believes no others.
"""

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

LOCKS = "ASSAYLINE_DEVICE_LOCKS"
"""Variable that tells a host which locks its worker holds."""

EXIT_WAIT_S = 10.0
START_SLACK_S = 2.0
"""Start times come from two readings of the clock."""


def locks_variable(locks: Iterable[Path]) -> dict[str, str]:
    """The environment that tells an engine's host which locks its device has."""
    return {LOCKS: ":".join(str(lock.absolute()) for lock in locks)}


def note_engine(environ: Mapping[str, str]) -> None:
    """Notes the session of a host that starts, whose number is its own, beside the locks of its device."""
    note = json.dumps(
        {"session": os.getsid(0), "started_s": psutil.Process().create_time(), "numbered_by": _numbered_by()}
    )
    for lock in filter(None, environ.get(LOCKS, "").split(":")):
        try:
            descriptor = os.open(_note_of(Path(lock)), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(note)
        except OSError as error:
            print(f"Cannot note this engine, which nobody will end if it is orphaned: {error}", file=sys.stderr)


def end_orphans(locks: Iterable[Path]) -> list[str]:
    """Kills what still runs in a session noted beside one of these locks, and waits until it is gone.

    Only for whoever has just got hold of all of them. Returns who was killed, in words.
    """
    sessions = {session for lock in locks for session in _sessions_of(lock)} - {0, 1, os.getsid(0)}
    if not sessions:
        return []
    orphans = [process for process in psutil.process_iter() if _session_of(process) in sessions]
    killed = []
    for orphan in orphans:
        with contextlib.suppress(psutil.Error):
            name = orphan.name()
            orphan.kill()
            killed.append(f"process {orphan.pid} ({name})")
    psutil.wait_procs(orphans, timeout=EXIT_WAIT_S)
    return killed


def _note_of(lock: Path) -> Path:
    return lock.with_name(f"{lock.stem}.{os.getuid()}.engine")


def _sessions_of(lock: Path) -> list[int]:
    """The session noted beside a lock; none if its number belongs to somebody else by now."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        path = _note_of(lock)
        if path.lstat().st_uid != os.getuid():
            return []
        note = json.loads(path.read_text(encoding="utf-8"))
        session, started_s = int(note["session"]), float(note["started_s"])
        if note["numbered_by"] != _numbered_by():
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            if abs(psutil.Process(session).create_time() - started_s) > START_SLACK_S:
                return []
        return [session]
    return []


def _numbered_by() -> str:
    """Who gives numbers to processes here: this start of the machine, this container."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()}"


def _session_of(process: psutil.Process) -> int | None:
    try:
        return os.getsid(process.pid) if process.status() != psutil.STATUS_ZOMBIE else None
    except (OSError, psutil.Error):
        return None
