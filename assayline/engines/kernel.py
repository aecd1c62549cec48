"""What the kernel says of memory: how many processes it has killed for it.

A SIGKILL says nothing of its sender. If this count grew meanwhile, it was the kernel's out-of-memory killer.
"""

import contextlib
from pathlib import Path


def count_oom_kills(root: Path = Path("/")) -> int:
    """Out-of-memory kills so far in this process's control group; of the whole machine where it has none."""
    for path in [*_group_files(root), root / "proc/vmstat"]:
        with contextlib.suppress(OSError, ValueError):
            for line in path.read_text().splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    return int(count)
    return 0


def _group_files(root: Path) -> list[Path]:
    """Where control groups count, version 2 first. In a container the group is often mounted as the root."""
    files = []
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if controllers in ("", "memory"):
                base = root / "sys/fs/cgroup" / controllers
                name = "memory.events" if controllers == "" else "memory.oom_control"
                files += [base / group.lstrip("/") / name, base / name]
    return files
