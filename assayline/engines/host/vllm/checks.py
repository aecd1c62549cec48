"""What vLLM is given, checked before a model loads: the device, its arguments, sampling parameters."""

import dataclasses
from typing import Any

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
    for name, kind in _nested_kinds(order.args).items():
        known = {field.name for field in dataclasses.fields(kind)}
        if unknown := sorted(set(order.args[name]) - known):
            raise SpecError(f"engine.args.{name} has unknown keys {unknown}. Known: {', '.join(sorted(known))}.")
    build_sampling_params(order.sampling, record_token_times=False)


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
