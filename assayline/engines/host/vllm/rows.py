"""Convert requests to vLLM's sampling parameters and media, and vLLM's outputs to completions, for both engines.

Also checks an order before its model is loaded.
"""

import dataclasses
import math
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from assayline.adapter import NAME
from assayline.engines.base import OpenedDetails
from assayline.engines.devices.claims import name_cpu
from assayline.engines.devices.nvidia import list_gpus, name_gpu, read_cuda_version, read_driver_version
from assayline.engines.host.core import MediaPool, Prepared
from assayline.engines.host.flight import Live
from assayline.engines.host.vllm.internals import (
    adapting,
    check_version,
    find_feature_extractor,
    find_version,
    make_config,
    make_lora_request,
    make_renderer,
    read_config,
    read_drafts,
    render_media,
)
from assayline.engines.host.vllm.preparers import Preparers
from assayline.engines.messages import Open, Opened
from assayline.engines.reasoning import AnswerStops
from assayline.errors import AssaylineError, DeviceError, EngineError, MediaError, SpecError
from assayline.media.load import Hearing, Loaded
from assayline.records import Completion, Json, Request
from assayline.spec.checks import NESTED_SAMPLING

NESTED_CONFIGS = ("structured_outputs_config", "profiler_config", "attention_config", "compilation_config")
"""Arguments for which `vllm.LLM` silently drops unknown keys of a mapping."""

SHARED_MEMORY = Path("/dev/shm")
LEAST_SHARED_BYTES = 2**27
"""A model split over processes needs more than a container's default of 64 MiB."""


def check_before_load(order: Open) -> None:
    """Check early what would fail after minutes of loading: vLLM's version, device, argument names, sampling."""
    check_version(find_version())
    import vllm
    from vllm.platforms import current_platform

    order.check_version(vllm.__version__)
    built_for = current_platform.device_type or "no device that it can find"
    device = order.engine.device
    if device not in ("auto", built_for):
        raise DeviceError(
            f"The spec asks for device {device!r}, but vLLM here runs on {built_for}. hint: set engine.device "
            f"to auto, or install vLLM's build for {device} and check that its driver answers."
        )
    if built_for == "cuda":
        import torch

        check_driver(torch.version.cuda, read_cuda_version())
    if SHARED_MEMORY.is_dir():
        check_shared_memory(order.engine.args, shutil.disk_usage(SHARED_MEMORY).total)
    for name, kind in _nested_kinds(order.engine.args).items():
        known = {field.name for field in dataclasses.fields(kind)}
        if unknown := sorted(set(order.engine.args[name]) - known):
            raise SpecError(f"engine.args.{name} has unknown keys {unknown}. Known: {', '.join(sorted(known))}.")
    build_sampling_params(order.sampling, record_token_times=False)


def try_order(order: Open) -> AssaylineError | None:
    """Return why vLLM would not open an engine, as far as it is known before the model loads; None if it would.

    An EngineError, neither SpecError nor DeviceError, reports that no device was found, so nothing was checked.
    """
    from vllm.platforms import current_platform

    try:
        if not current_platform.device_type and order.engine.device == "auto":
            return EngineError("vLLM finds no device on this machine, so engine.args is not checked.")
        check_before_load(order)
        with adapting():
            make_config({"model": order.model, **build_nested_configs(order.engine.args)})
    except (SpecError, DeviceError) as error:
        return error
    except Exception as error:  # vLLM's refusals share no base
        return explain_refusal(error, order.engine.args)
    return None


def explain_refusal(error: Exception, args: dict[str, Json]) -> SpecError:
    """Return vLLM's objection to engine arguments, with the name and the value of the argument."""
    place, words = "", str(error.args[0] if isinstance(error, KeyError) else error)
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        place, words = ".".join(map(str, first["loc"][:1])), first["msg"].removeprefix("Value error, ")
    meant = sorted((name for name in args if place and name.endswith(place)), key=len)
    meant += [name for name in args if name in words or (isinstance(args[name], str) and str(args[name]) in words)]
    named = f"engine.args.{meant[0]} {args[meant[0]]!r}" if meant else "the model or its engine.args"
    where = f", at {place}" if place and not meant else ""
    words = " ".join(words.split()).rstrip(".")
    hint = "correct engine.args, which are vLLM's EngineArgs" if place or meant else "check `model` and engine.args"
    return SpecError(f"vLLM rejects {named}{where}: {words}. hint: {hint}.")


def check_driver(built_for: str | None, offered: tuple[int, int] | None) -> None:
    """Raise DeviceError if torch needs a newer major version of CUDA than the driver offers. None: not CUDA."""
    if built_for and offered and int(built_for.partition(".")[0]) > offered[0]:
        raise DeviceError(
            f"torch is built for CUDA {built_for}, but the NVIDIA driver {read_driver_version()} runs CUDA "
            f"{offered[0]}.{offered[1]} at most. hint: update the driver, or install builds of torch and vLLM for "
            f"CUDA {offered[0]}."
        )


def check_shared_memory(args: dict[str, Json], total_bytes: int) -> None:
    """Raise DeviceError if the processes of a split model have too little shared memory for their messages."""
    processes = math.prod(int(args.get(name) or 1) for name in ("tensor_parallel_size", "pipeline_parallel_size"))
    if processes > 1 and total_bytes < LEAST_SHARED_BYTES:
        raise DeviceError(
            f"{SHARED_MEMORY} has {total_bytes >> 20} MiB, too little for a model split over {processes} processes. "
            "hint: start the container with --shm-size=8g (Docker) or mount an emptyDir with medium: Memory on "
            f"{SHARED_MEMORY} (Kubernetes)."
        )


def build_nested_configs(args: dict[str, Json]) -> dict[str, Any]:
    """Return the arguments with mappings replaced by vLLM's objects, as `vllm.LLM` does itself."""
    return {**args, **{name: kind(**args[name]) for name, kind in _nested_kinds(args).items()}}


def _nested_kinds(args: dict[str, Json]) -> dict[str, Any]:
    """Return the classes of the nested configurations that are given as mappings."""
    from vllm.engine.arg_utils import EngineArgs

    fields = {field.name: field for field in dataclasses.fields(EngineArgs)}
    factories = {
        name: fields[name].default_factory
        for name in NESTED_CONFIGS
        if name in fields and isinstance(args.get(name), dict)
    }
    return {name: type(make()) for name, make in factories.items() if make is not dataclasses.MISSING}


def build_sampling_params(sampling: dict[str, Json], *, record_token_times: bool) -> Any:
    """Build `vllm.SamplingParams` from plain values. Raises SpecError with vLLM's own reason."""
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


class Adapters:
    """The LoRA adapters of an engine, which tells them apart by number."""

    def __init__(self) -> None:
        self._folders: list[str] = []

    def find(self, order: Open) -> Any | None:
        """Return vLLM's request for the order's adapter; None for the base."""
        if order.adapter is None:
            return None
        if order.adapter not in self._folders:
            self._folders.append(order.adapter)
        number = self._folders.index(order.adapter) + 1
        return make_lora_request(f"{NAME}-{number}", number, order.adapter)


FINISHED_IN_ERROR = "error"
"""vLLM's finish_reason of a single request that failed in the engine core: without text and without an error."""

GAVE_UP = "engine_gave_up"
"""error_kind of such a request."""


class VllmRows:
    """A maker of completions for one engine."""

    def __init__(self, order: Open) -> None:
        self._order = order
        self._clock = order.clock
        self._has_token_times = order.engine.records_token_times

    def build_params(self, request: Request, live: Live) -> Any:
        """Build sampling parameters. A reasoning model's stop texts stay in `live`, which finds them in the answer."""
        params = build_sampling_params(request.sampling, record_token_times=self._has_token_times)
        if live.reasoning is None or not params.stop:
            return params
        live.stops = AnswerStops(
            params.stop,
            live.reasoning.close,
            keep_stop=params.include_stop_str_in_output,
            min_tokens=params.min_tokens,
        )
        return build_sampling_params({**request.sampling, "stop": None}, record_token_times=True)

    def refuse(self, live: Live, error: Exception) -> Completion:
        """Return the error row of a request that vLLM refuses."""
        return self._completion(
            live,
            finished=time.monotonic(),
            prompt_tokens=len(live.message.request.prompt_token_ids),
            error_kind=_kind_of(error),
            error_message=str(error),
        )

    def finish(self, live: Live, output: Any, now: float) -> Completion:
        """Return the row of a request that vLLM answered or gave up; `output` is its last one."""
        if live.finish_reason == FINISHED_IN_ERROR:
            row = self.refuse(live, RuntimeError("The engine gave this request up; its log has the reason."))
            return replace(row, error_kind=GAVE_UP)
        stats = output.metrics
        return self._completion(
            live,
            finished=now,
            queued_at_s=self._at(stats.queued_ts),
            scheduled_at_s=self._at(stats.scheduled_ts),
            first_token_at_s=self._at(stats.first_token_ts),
            last_token_at_s=self._at(stats.last_token_ts),
            prompt_tokens=len(output.prompt_token_ids),
            cached_tokens=output.num_cached_tokens,
            output_tokens=len(live.token_ids),
            preemptions=getattr(stats, "num_preemptions", None),
            **read_drafts(output),
            finish_reason=live.finish_reason,
            stop_reason=None if live.stop_reason is None else str(live.stop_reason),
            **live.answer(),
            token_at_s=[self._clock.at_s(stamp) for stamp in live.stamps] if self._has_token_times else None,
        )

    def _completion(self, live: Live, *, finished: float, **values: Any) -> Completion:
        message = live.message
        return Completion(
            request_id=message.request.request_id,
            worker=self._order.worker,
            engine_generation=self._order.engine_generation,
            window_requests=message.window_requests,
            sent_at_s=message.sent_at_s,
            arrived_at_s=self._clock.at_s(live.arrived),
            finished_at_s=self._clock.at_s(finished),
            **live.media,
            **values,
        )

    def _at(self, stamp: float) -> float | None:
        return self._clock.at_s(stamp) if stamp else None  # vLLM's 0.0 means "never"


def _kind_of(error: Exception) -> str:
    match error:
        case SpecError():
            return "sampling_error"
        case MediaError(kind=kind):
            return kind
    return "rejected_by_engine"


def describe_engine(config: Any) -> Opened:
    """Return what the engine with this `VllmConfig` resolved."""
    from vllm.platforms import current_platform

    details = OpenedDetails(**read_config(config), device_name=name_device(current_platform))
    if details.get("device") == "cuda":
        details["driver_version"] = read_driver_version()
    return Opened(details["max_num_seqs"], details["max_model_len"], details)


def name_device(platform: Any) -> str:
    """Return the device's name, or at least its kind: an engine must not fail for a label."""
    if platform.device_type == "cpu":
        return name_cpu()
    try:
        return str(platform.get_device_name())
    except Exception:  # a plugin's platform without a name; NVML's errors, as vLLM treats a MIG slice as a GPU
        names = (name_gpu(gpu) for gpu in list_gpus())
        return next(filter(None, names), str(platform.device_type))


class VllmMedia:
    """A maker of engine inputs from requests with media: in `preparers` if there are any, else in threads."""

    def __init__(self, order: Open, renderer: Any, config: Any, preparers: Preparers | None = None) -> None:
        self._renderer = renderer
        self._config = config
        self._preparers = preparers
        self._hearing = _find_hearing(renderer)
        # One at a time, as in vLLM itself: processors and tokenizers of models are not thread-safe.
        self._rendering = threading.Lock()
        self.pool: MediaPool[dict[str, Any]] = MediaPool(order, self._hearing, self._render)
        if preparers:
            preparers.begin(config, self.prepare, self.pool.threads)

    def submit(self, request: Request) -> "Future[Prepared[dict[str, Any]]]":
        """Have a request's media prepared outside the engine."""
        return self._preparers.submit(request) if self._preparers else self.pool.threads.submit(self.prepare, request)

    def prepare(self, request: Request) -> Prepared[dict[str, Any]]:
        """Return the input for `add_request`. Raises MediaError, and what vLLM raises for unusable media."""
        try:
            prepared = self.pool.prepare(request)
        except StopIteration as error:  # no coroutine can wait for a future with it
            raise RuntimeError(f"A processor of the model ended early: {error!r}") from error
        placed = prepared.form["mm_placeholders"]
        media_tokens = sum(place.length for places in placed.values() for place in places)
        return Prepared(prepared.form, {**prepared.columns, "media_tokens": media_tokens})

    def _render(self, request: Request, loaded: list[Loaded]) -> dict[str, Any]:
        prompt = {
            "prompt_token_ids": request.prompt_token_ids,
            "multi_modal_data": self._group(loaded, self._convert),
            # Digests of the content: vLLM's caches need not hash the pixels, and equal media have equal ids.
            "multi_modal_uuids": self._group(loaded, lambda one: one.media["digest"]),
        }
        with self._rendering:
            rendered = render_media(self._renderer, prompt)
        expanded = len(rendered["prompt_token_ids"])
        max_model_len = self._config.model_config.max_model_len
        if expanded + 1 > max_model_len:
            raise MediaError(
                f"The prompt has {expanded} tokens with its media ({len(request.prompt_token_ids)} without), but the "
                f"context is {max_model_len} tokens (max_model_len), at least one of them for the answer. "
                "hint: shorten it, or make its images smaller with prompts.media.max_pixels.",
                kind="prompt_too_long",
            )
        return rendered

    def _convert(self, one: Loaded) -> Any:
        match one.media["kind"]:
            case "audio":
                return one.value, self._hearing.rate_hz
            case "video":
                return one.value.frames, one.value.metadata
        return one.value

    def _group(self, loaded: list[Loaded], read: Callable[[Loaded], Any]) -> dict[str, list[Any]]:
        grouped: dict[str, list[Any]] = {}
        for one in loaded:
            grouped.setdefault(one.media["kind"], []).append(read(one))
        return grouped


def fork_preparers(order: Open) -> Preparers | None:
    """Fork the processes that prepare media, before the engine opens. None if its requests have none."""
    if not order.has_media:
        return None
    from vllm import LLM

    assert LLM  # imported before the fork, so shared
    return Preparers(order, _make_prepare)


def require_reset(was_reset: bool) -> None:
    """Raise RuntimeError if vLLM kept cached prefixes: the next run would be answered from them."""
    if was_reset is False:
        raise RuntimeError("vLLM did not reset its prefix cache, so another run cannot take the engine over.")


def _make_prepare(order: Open, config: Any) -> Callable[[Request], Prepared[dict[str, Any]]]:
    import torch

    torch.set_num_threads(1)  # the engine's own threads have the cores
    return VllmMedia(order, make_renderer(config), config).prepare


def _find_hearing(renderer: Any) -> Hearing:
    """Return rate and longest audio of the model's feature extractor, or the defaults."""
    extractor = find_feature_extractor(renderer)
    rate_hz, longest_s = getattr(extractor, "sampling_rate", None), getattr(extractor, "chunk_length", None)
    hearing = Hearing()
    return Hearing(
        rate_hz if isinstance(rate_hz, int) else hearing.rate_hz,
        float(longest_s) if isinstance(longest_s, (int, float)) else None,
    )
