"""What vLLM is given, checked before a model loads: the device, its arguments, sampling parameters."""

import dataclasses
import math
import shutil
from pathlib import Path
from typing import Any

from assayline.engines.devices.nvidia import read_cuda_version, read_driver_version
from assayline.engines.host.vllm.internals import check_installed
from assayline.engines.messages import Open
from assayline.errors import DeviceError, SpecError
from assayline.records import Json

NESTED_CONFIGS = ("structured_outputs_config", "profiler_config", "attention_config", "compilation_config")
"""Arguments for which `vllm.LLM` drops unknown keys of a mapping without a word."""

NESTED_SAMPLING = {
    "structured_outputs": "StructuredOutputsParams",
    "repetition_detection": "RepetitionDetectionParams",
}
"""Sampling parameters that are objects in vLLM and mappings in a spec, with their classes."""


SHARED_MEMORY = Path("/dev/shm")
LEAST_SHARED_BYTES = 2**27
"""A model that is split over processes needs more than the 64 MiB of a container that nobody gave a size."""


def check_before_load(order: Open) -> None:
    """Fails for what would fail after minutes of loading: a strange vLLM, the device, misspelt arguments, sampling."""
    check_installed()
    from vllm.platforms import current_platform

    built_for = current_platform.device_type or "no device that it can find"
    if order.device != "auto" and order.device != built_for:
        raise DeviceError(
            f"The spec asks for device {order.device!r}, but vLLM here runs on {built_for}. Set engine.device to "
            f"auto, or install vLLM's build for {order.device} and check that its driver answers."
        )
    if built_for == "cuda":
        _check_driver()
    _check_shared_memory(order.args)
    for name, kind in _nested_kinds(order.args).items():
        known = {field.name for field in dataclasses.fields(kind)}
        if unknown := sorted(set(order.args[name]) - known):
            raise SpecError(f"engine.args.{name} has unknown keys {unknown}. Known: {', '.join(sorted(known))}.")
    build_sampling_params(order.sampling, record_token_times=False)


def _check_driver() -> None:
    """Raises DeviceError for a torch that is built for a newer CUDA than the driver has. No context is opened."""
    import torch

    built_for, offered = torch.version.cuda, read_cuda_version()
    if built_for and offered and int(built_for.partition(".")[0]) > offered[0]:
        raise DeviceError(
            f"torch {torch.__version__} is built for CUDA {built_for}, but the NVIDIA driver {read_driver_version()} "
            f"runs CUDA {offered[0]}.{offered[1]} at most. hint: update the driver, or install builds of torch and "
            f"vLLM for CUDA {offered[0]}."
        )


def _check_shared_memory(args: dict[str, Json]) -> None:
    """Raises DeviceError if the processes of a split model have too little shared memory to talk through."""
    processes = math.prod(int(args.get(name) or 1) for name in ("tensor_parallel_size", "pipeline_parallel_size"))
    if processes == 1 or not SHARED_MEMORY.is_dir():
        return
    total_bytes = shutil.disk_usage(SHARED_MEMORY).total
    if total_bytes < LEAST_SHARED_BYTES:
        raise DeviceError(
            f"{SHARED_MEMORY} has {total_bytes >> 20} MiB, too little for a model split over {processes} processes. "
            "hint: start the container with --shm-size=8g (Docker) or mount an emptyDir with medium: Memory on "
            f"{SHARED_MEMORY} (Kubernetes)."
        )


def build_nested_configs(args: dict[str, Json]) -> dict[str, Any]:
    """The arguments, with vLLM's objects where mappings are given. `vllm.LLM` does so itself."""
    return {**args, **{name: kind(**args[name]) for name, kind in _nested_kinds(args).items()}}


def _nested_kinds(args: dict[str, Json]) -> dict[str, Any]:
    """Classes of the nested configurations that are given as mappings."""
    from vllm.engine.arg_utils import EngineArgs

    fields = {field.name: field for field in dataclasses.fields(EngineArgs)}
    factories = {
        name: fields[name].default_factory
        for name in NESTED_CONFIGS
        if name in fields and isinstance(args.get(name), dict)
    }
    return {name: type(make()) for name, make in factories.items() if make is not dataclasses.MISSING}


def build_sampling_params(sampling: dict[str, Json], *, record_token_times: bool) -> Any:
    """`vllm.SamplingParams` from plain values. Raises SpecError with vLLM's own reason."""
    from vllm import sampling_params

    values = dict(sampling)
    try:
        for name, kind in NESTED_SAMPLING.items():
            if isinstance(values.get(name), dict):
                values[name] = getattr(sampling_params, kind)(**values[name])
        if isinstance(bias := values.get("logit_bias"), dict):
            values["logit_bias"] = {int(token): value for token, value in bias.items()}  # JSON's keys are text
        params = sampling_params.SamplingParams(**values)
    except Exception as error:  # vLLM's validation errors share no base across the supported versions
        raise SpecError(f"Sampling parameters {sampling} are not usable: {error}") from error
    kinds = sampling_params.RequestOutputKind
    params.output_kind = kinds.DELTA if record_token_times else kinds.FINAL_ONLY
    return params
