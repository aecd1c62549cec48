"""How much main memory is free, as the machine, the control groups and the process's own limit have it."""

import resource
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from assayline.engines.devices.watch import read_free_main_memory

GIB = 2**30


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=20 * GIB))
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def write(root: Path, files: dict[str, object]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")


def test_read_free_main_memory_is_the_machines_without_limits(tmp_path):
    assert read_free_main_memory(tmp_path) == 20 * GIB


def test_read_free_main_memory_respects_a_group_of_version_1(tmp_path):
    group = "sys/fs/cgroup/memory/docker/ab"
    write(tmp_path, {
        "proc/self/cgroup": "9:name=systemd:/\n4:memory:/docker/ab\n0::/",
        f"{group}/memory.limit_in_bytes": 4 * GIB,
        f"{group}/memory.usage_in_bytes": 2 * GIB,
        f"{group}/memory.stat": f"cache 5\ninactive_file 1\ntotal_inactive_file {GIB}",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": 2**63 - 4096,
        "sys/fs/cgroup/memory/memory.usage_in_bytes": 9 * GIB,
        "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 0",
    })  # fmt: skip
    assert read_free_main_memory(tmp_path) == 3 * GIB


def test_read_free_main_memory_respects_the_groups_around_one_of_version_2(tmp_path):
    files = {"proc/self/cgroup": "0::/pod.slice/box"}
    for folder, limit, used in (("pod.slice", 6 * GIB, GIB), ("pod.slice/box", "max", GIB)):
        group = f"sys/fs/cgroup/{folder}"
        files |= {
            f"{group}/memory.max": str(limit),
            f"{group}/memory.current": str(used),
            f"{group}/memory.stat": "anon 1\ninactive_file 0",
        }
    write(tmp_path, files)
    assert read_free_main_memory(tmp_path) == 5 * GIB


def test_read_free_main_memory_finds_a_containers_group_at_the_root_of_its_mount(tmp_path):
    write(tmp_path, {
        "proc/self/cgroup": "0::/kubepods/not-mounted-here",
        "sys/fs/cgroup/memory.max": 4 * GIB,
        "sys/fs/cgroup/memory.current": GIB,
        "sys/fs/cgroup/memory.stat": "inactive_file 0",
    })  # fmt: skip
    assert read_free_main_memory(tmp_path) == 3 * GIB


def test_read_free_main_memory_respects_the_limit_of_the_address_space(monkeypatch, tmp_path):
    size = SimpleNamespace(memory_info=lambda: SimpleNamespace(vms=3 * GIB))
    monkeypatch.setattr(psutil, "Process", lambda: size)
    for limit, free in ((5 * GIB, 2 * GIB), (2 * GIB, 0)):
        monkeypatch.setattr(resource, "getrlimit", lambda which, limit=limit: (limit, limit))
        assert read_free_main_memory(tmp_path) == free
