"""What each kind of engine event has in its details, as JSON that SQL reads."""

from typing import TypedDict

from assayline.records import Json


class OpenedDetails(TypedDict, total=False):
    """Details of `opened`: what an engine says of itself. What it does not know is left out or None.

    A server of our own tells all its arguments beside these, by their names.
    """

    vllm_version: str | None
    torch_version: str | None
    device: str
    device_name: str | None
    driver_version: str | None
    """Of the GPU's driver."""
    claimed_device: str
    """The device as the worker holds it."""
    claimed_gpus: int
    """How many GPUs that is."""
    kept_from: str
    """The run that loaded it, where an engine was taken over."""
    window_requests: int | None
    dtype: str
    quantization: str | None
    max_model_len: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    enable_chunked_prefill: bool | None
    gpu_memory_utilization: float | None
    kv_cache_memory_bytes: int | None
    min_kv_cache_bytes: int | None
    """What one request of the full context takes of it."""
    tensor_parallel_size: int
    enable_prefix_caching: bool | None
    block_size_tokens: int | None
    kv_cache_tokens: int | None
    enforce_eager: bool
    engine_config_hash: str
    endpoint: str
    """completions or chat; this and what follows, of a server."""
    served_model: str
    takes_vllm_extensions: bool
    server: str
    """Its address, or that it is ours."""


class WarmedUpDetails(TypedDict):
    """Details of `warmed_up`."""

    prompt_tokens: int | None


class FailedDetails(TypedDict, total=False):
    """Details of `failed`; none where it was no engine that died."""

    kind: str
    is_memory: bool
    phase: str
    """start or run."""
    summary: str
    exit_code: int | None
    in_flight_requests: int
    window_requests: int | None


Change = TypedDict("Change", {"from": Json, "to": Json})
Changes = dict[str, Change]
"""Details of `reduced`, `restored` and `grown`: what changed, by the names of `recovery.sizes.Sizes`."""


class IsolatedDetails(TypedDict):
    """Details of `isolated`."""

    request_id: str


class LoadEndedDetails(TypedDict):
    """Details of `load_ended`."""

    reason: str
    """As in `load.course.LoadEnd`."""
    sent_requests: int
