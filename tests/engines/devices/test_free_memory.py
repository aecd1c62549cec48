"""How much main memory is free, as the machine, the control groups and the process's own limit have it."""

import os
import resource
from types import SimpleNamespace

import psutil
import pytest

from assayline.engines.devices.watch import read_free_main_memory
from assayline.store.database import read_memory_bytes

GIB = 2**30


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=20 * GIB))
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def version_1(group: str, limit: int, usage: int, cached: int = 0) -> dict[str, object]:
    files = {"limit_in_bytes": limit, "usage_in_bytes": usage, "stat": f"inactive_file 1\ntotal_inactive_file {cached}"}
    return {f"sys/fs/cgroup/memory/{group}/memory.{name}": value for name, value in files.items()}


def version_2(group: str, limit: object, usage: int) -> dict[str, object]:
    files = {"max": limit, "current": usage, "stat": "anon 1\ninactive_file 0"}
    return {f"sys/fs/cgroup/{group}/memory.{name}": value for name, value in files.items()}


@pytest.mark.parametrize(
    ("groups", "files", "free_gib", "limit_gib"),
    [
        ("0::/", {}, 20, None),
        (
            "9:name=systemd:/\n4:memory:/docker/ab\n0::/",
            {**version_1("docker/ab", 4 * GIB, 2 * GIB, GIB), **version_1("", 2**63 - 4096, 9 * GIB)},
            3,
            4,
        ),
        ("0::/pod.slice/box", {**version_2("pod.slice", 6 * GIB, GIB), **version_2("pod.slice/box", "max", GIB)}, 5, 6),
        ("0::/kubepods/not-mounted-here", version_2("", 4 * GIB, GIB), 3, 4),
    ],
    ids=["no limit", "version 1", "the group around one of version 2", "a container's at the root of its mount"],
)
def test_read_free_main_memory_respects_control_groups(tmp_path, groups, files, free_gib, limit_gib):
    for name, content in {"proc/self/cgroup": groups, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{content}\n")
    assert read_free_main_memory(tmp_path) == free_gib * GIB
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert read_memory_bytes(tmp_path) == (machine if limit_gib is None else limit_gib * GIB)


def test_read_free_main_memory_respects_the_limit_of_the_address_space(monkeypatch, tmp_path):
    size = SimpleNamespace(memory_info=lambda: SimpleNamespace(vms=3 * GIB))
    monkeypatch.setattr(psutil, "Process", lambda: size)
    for limit, free in ((5 * GIB, 2 * GIB), (2 * GIB, 0)):
        monkeypatch.setattr(resource, "getrlimit", lambda which, limit=limit: (limit, limit))
        assert read_free_main_memory(tmp_path) == free
