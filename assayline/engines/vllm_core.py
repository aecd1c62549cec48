"""vLLM itself, inside the engine host: the only module that imports `vllm` and `torch`.

It drives `vllm.LLM` one step at a time (`add_request`, `step`) instead of calling `LLM.generate`, so that the engine is
fed while others finish, and a bad request fails alone. Works with vLLM 0.26 to 0.33.
"""

import contextlib
import dataclasses
import os
import time
from pathlib import Path
from typing import Any

from assayline.engines.live import Live
from assayline.engines.reasoning import AnswerStops
from assayline.engines.wire import Generate, Open, Opened
from assayline.errors import DeviceError, SpecError
from assayline.records import Completion, Json, Request, TelemetrySample

NESTED_CONFIGS = ("structured_outputs_config", "profiler_config", "attention_config", "compilation_config")
"""Arguments for which `vllm.LLM` drops unknown keys of a mapping without a word."""

NESTED_SAMPLING = {
    "structured_outputs": "StructuredOutputsParams",
    "repetition_detection": "RepetitionDetectionParams",
}
"""Sampling parameters that are objects in vLLM and mappings in a spec, with their classes."""


def check_before_load(order: Open) -> None:
    """Fails for what would fail after minutes of loading: the device, misspelt arguments, impossible sampling."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform

    built_for = current_platform.device_type or "no device that it can find"
    if order.device != "auto" and order.device != built_for:
        raise DeviceError(
            f"The spec asks for device {order.device!r}, but vLLM here runs on {built_for}. Set engine.device to "
            f"auto, or install vLLM's build for {order.device} and check that its driver answers."
        )
    fields = {field.name: field for field in dataclasses.fields(EngineArgs)}
    for name in NESTED_CONFIGS:
        value = order.args.get(name)
        factory = fields[name].default_factory if name in fields else dataclasses.MISSING
        if isinstance(value, dict) and factory is not dataclasses.MISSING:
            known = {field.name for field in dataclasses.fields(type(factory()))}
            if unknown := sorted(set(value) - known):
                raise SpecError(f"engine.args.{name} has unknown keys {unknown}. Known: {', '.join(sorted(known))}.")
    build_sampling_params(order.sampling, record_token_times=False)


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


class VllmCore:
    """An engine that takes requests and makes steps. Not thread-safe: one thread drives it."""

    def __init__(self, order: Open) -> None:
        from vllm import LLM

        self._order = order
        self._clock = order.clock
        self._llm = LLM(model=order.model, **{**order.args, "disable_log_stats": False})
        self._engine = self._llm.llm_engine
        self._live: dict[str, Live] = {}
        self.steps = 0
        self.output_tokens = 0

    @property
    def in_flight(self) -> int:
        """Requests that were added and have not finished."""
        return len(self._live)

    def sample(self) -> TelemetrySample:
        """The counters now. Read by another thread: each is a number of its own, so none is torn."""
        order = self._order
        return TelemetrySample(
            order.worker, order.engine_generation, self._clock.now_s(), self.steps, self.in_flight, self.output_tokens
        )

    def describe(self) -> Opened:
        """What the engine resolved: sizes, versions, device."""
        import torch
        import vllm
        from vllm.platforms import current_platform

        config = self._engine.vllm_config
        details = {
            "vllm_version": vllm.__version__,
            "torch_version": torch.__version__,
            "device": current_platform.device_type,
            "device_name": _device_name(),
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
            "quantization": config.model_config.quantization,
            "max_model_len": config.model_config.max_model_len,
            "max_num_seqs": config.scheduler_config.max_num_seqs,
            "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
            "enable_chunked_prefill": config.scheduler_config.enable_chunked_prefill,
            "gpu_memory_utilization": config.cache_config.gpu_memory_utilization,
            "kv_cache_memory_bytes": config.cache_config.kv_cache_memory_bytes,
            "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
            "enable_prefix_caching": config.cache_config.enable_prefix_caching,
            "block_size_tokens": config.cache_config.block_size,
            "kv_cache_tokens": (config.cache_config.num_gpu_blocks or 0) * (config.cache_config.block_size or 0)
            or None,
            "enforce_eager": config.model_config.enforce_eager,
            "engine_config_hash": config.compute_hash(),
        }
        return Opened(details["max_num_seqs"], details["max_model_len"], details)

    def add(self, message: Generate) -> Completion | None:
        """Hands a request to the scheduler. Returns an error row if vLLM refuses it."""
        live = Live(message, time.monotonic(), self._order.reasoning)
        request = message.request
        try:
            params = self._build_params(request, live)
            prompt = {"type": "token", "prompt_token_ids": request.prompt_token_ids}
            self._engine.add_request(request.request_id, prompt, params)
        except Exception as error:
            if type(error).__name__ == "EngineDeadError":
                raise
            return self._completion(
                live,
                finished=time.monotonic(),
                prompt_tokens=len(request.prompt_token_ids),
                error_kind="sampling_error" if isinstance(error, SpecError) else "rejected_by_engine",
                error_message=str(error),
            )
        self._live[request.request_id] = live
        return None

    def _build_params(self, request: Request, live: Live) -> Any:
        """Sampling parameters; stop texts of a model that reasons stay here, with `live`, to be found in the answer."""
        params = build_sampling_params(request.sampling, record_token_times=self._order.record_token_times)
        if live.reasoning is None or not params.stop:
            return params
        live.stops = AnswerStops(
            params.stop,
            live.reasoning.close,
            keep_stop=params.include_stop_str_in_output,
            min_tokens=params.min_tokens,
        )
        return build_sampling_params({**request.sampling, "stop": None}, record_token_times=True)

    def step(self) -> list[Completion]:
        """One engine step. Returns what it finished."""
        outputs = self._engine.step()
        now = time.monotonic()
        self.steps += 1
        finished = []
        for output in outputs:
            live = self._live.get(output.request_id)
            if live is None:
                continue
            live.take(output)
            if output.finished or live.is_stopped:
                del self._live[output.request_id]
                finished.append(self._finish(live, output, now))
                if not output.finished:
                    self._engine.abort_request([output.request_id])
        return finished

    def abort_all(self) -> None:
        """Forgets everything in flight."""
        self._engine.abort_request(list(self._live))
        self._live.clear()
        while self._engine.has_unfinished_requests():
            self._engine.step()

    def warm_up(self, request: Request) -> None:
        """Generates one request to its end and sets the counters back. Raises what the engine raises."""
        refused = self.add(Generate(request, 0.0, 1))
        while self._live:
            self.step()
        self.steps = self.output_tokens = 0
        if refused is not None:
            raise SpecError(f"The warm-up request was refused: {refused.error_message}")

    def close(self) -> None:
        """Ends vLLM's own processes, where it has any."""
        self._engine.engine_core.shutdown()

    def _finish(self, live: Live, output: Any, now: float) -> Completion:
        stats = output.metrics
        self.output_tokens += len(live.token_ids)
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
            finish_reason=live.finish_reason,
            stop_reason=None if live.stop_reason is None else str(live.stop_reason),
            **live.answer(),
            token_at_s=[self._clock.at_s(stamp) for stamp in live.stamps] if self._order.record_token_times else None,
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
            **values,
        )

    def _at(self, stamp: float) -> float | None:
        return self._clock.at_s(stamp) if stamp else None  # vLLM's 0.0 means "never"


def _device_name() -> str:
    from vllm.platforms import current_platform

    if current_platform.device_type == "cpu":
        return _cpu_name()
    try:
        return str(current_platform.get_device_name())
    except (NotImplementedError, RuntimeError):
        return str(current_platform.device_type)


def _cpu_name() -> str:
    cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return f"{line.partition(':')[2].strip()}, {cores} cores"
    return f"cpu, {cores} cores"
