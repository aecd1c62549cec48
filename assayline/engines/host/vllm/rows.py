"""From a request to vLLM's sampling parameters, and from vLLM's outputs to a completion: the same for both engines."""

import time
from dataclasses import replace
from typing import Any

from assayline.engines.devices.claims import name_cpu
from assayline.engines.devices.nvidia import list_gpus, name_gpu, read_driver_version
from assayline.engines.event_details import OpenedDetails
from assayline.engines.host.flight import Live
from assayline.engines.host.vllm.checks import build_sampling_params
from assayline.engines.host.vllm.internals import read_config
from assayline.engines.messages import Open, Opened
from assayline.engines.reasoning import AnswerStops
from assayline.errors import MediaError, SpecError
from assayline.records import Completion, Request

FINISHED_IN_ERROR = "error"
"""vLLM's finish_reason of a request that failed in the engine core alone: it has no text, and raises nothing."""

GAVE_UP = "engine_gave_up"
"""error_kind of such a request."""


class VllmRows:
    """Makes the rows of one engine."""

    def __init__(self, order: Open) -> None:
        self._order = order
        self._clock = order.clock

    def build_params(self, request: Request, live: Live) -> Any:
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

    def refuse(self, live: Live, error: Exception) -> Completion:
        """The row of a request that vLLM does not take."""
        return self._completion(
            live,
            finished=time.monotonic(),
            prompt_tokens=len(live.message.request.prompt_token_ids),
            error_kind=_kind_of(error),
            error_message=str(error),
        )

    def finish(self, live: Live, output: Any, now: float) -> Completion:
        """The row of a request that is answered, or given up by vLLM; `output` is its last one."""
        if live.finish_reason == FINISHED_IN_ERROR:
            row = self.refuse(live, RuntimeError("The engine gave this request up; its log says why."))
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
    """What the engine with this `VllmConfig` resolved."""
    details = OpenedDetails(**read_config(config), device_name=_device_name())
    if details.get("device") == "cuda":
        details["driver_version"] = read_driver_version()
    return Opened(details["max_num_seqs"], details["max_model_len"], details)


def _device_name() -> str:
    from vllm.platforms import current_platform

    if current_platform.device_type == "cpu":
        return name_cpu()
    try:
        return str(current_platform.get_device_name())
    except Exception:  # a plugin's platform that has none; NVML's errors, as vLLM takes a MIG slice for a whole GPU
        names = (name_gpu(gpu) for gpu in list_gpus())
        return next(filter(None, names), str(current_platform.device_type))
