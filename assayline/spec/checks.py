"""Names of vLLM's arguments, known without importing vLLM.

Importing vLLM takes seconds and hundreds of MB, and initialises a device; a misspelt argument should not have to wait
for that. So the names are read from the class bodies in the installed package's source. Whether the *values* are usable
is vLLM's to say, in the engine host, still before the model loads.
"""

import ast
import importlib.util
import math
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from assayline.errors import EngineError, SpecError
from assayline.records import Json
from assayline.spec.evaluation import EvalSpec
from assayline.words import nearest

OURS = {
    "model": "it is the spec's own `model`",
    "revision": "it is the spec's own `revision`",
    "disable_log_stats": "timings need vLLM's statistics, so they are always on",
    "data_parallel_size": "use `workers: N`, which are independent engines side by side and die alone, or "
    "engine.backend: server without a url, whose `vllm serve` takes it",
    "stream_interval": "engine.record_token_times stamps every token",
}
"""Engine arguments that the spec sets in another way."""

PARALLEL_SIZES = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "prefill_context_parallel_size",
    "data_parallel_size",
)
"""Arguments whose product is the number of GPUs; decode_context_parallel_size divides the tensor shards' own GPUs."""


def _number(test: Callable[[float], bool], words: str) -> tuple[Callable[[Any], bool], str]:
    return lambda value: isinstance(value, int | float) and test(value), f"a number {words}"


def _whole(least: int) -> tuple[Callable[[Any], bool], str]:
    return lambda value: isinstance(value, int) and value >= least, f"a whole number of at least {least}"


NUMBERS = {
    "sampling": {
        "temperature": _number(lambda value: 0 <= value <= 2, "from 0 to 2"),
        "top_p": _number(lambda value: 0 < value <= 1, "above 0 and at most 1"),
        "top_k": _whole(-1),
        "min_p": _number(lambda value: 0 <= value <= 1, "from 0 to 1"),
        "presence_penalty": _number(lambda value: -2 <= value <= 2, "from -2 to 2"),
        "frequency_penalty": _number(lambda value: -2 <= value <= 2, "from -2 to 2"),
        "repetition_penalty": _number(lambda value: 0 < value < math.inf, "above 0"),
        "max_tokens": _whole(1),
        "min_tokens": _whole(0),
        "logprobs": _whole(-1),
        "prompt_logprobs": _whole(-1),
    },
    "engine.args": {
        "gpu_memory_utilization": _number(lambda value: 0 < value <= 1, "above 0 and at most 1"),
        "block_size": _whole(1),
        "max_num_seqs": _whole(1),
        "max_num_batched_tokens": _whole(1),
        "max_model_len": _whole(-1),
    },
}
"""vLLM's own rules (0.32): SamplingParams._verify_args in sampling_params.py, and the fields of config/cache.py,
scheduler.py and model.py."""

PARSE_TRIES = 5


def check_arguments(spec: EvalSpec) -> None:
    """Raises SpecError for engine arguments and sampling parameters that the installed vLLM does not have.

    A spec for the fake engine or for a server that runs may leave vLLM out; sampling is checked if vLLM is there.
    """
    check_numbers(spec)
    if not spec.engine.needs_device and not vllm_is_installed():
        return
    _check_names("engine.args", list(spec.engine.args), engine_argument_names())
    _check_names("sampling", list(spec.sampling), sampling_parameter_names())
    for name in spec.engine.args:
        if name in OURS and not (spec.engine.kind.is_served and name == "data_parallel_size"):
            raise SpecError(f"engine.args.{name} cannot be set: {OURS[name]}.")
    for name in ("output_kind", "stream_interval"):
        if name in spec.sampling:
            raise SpecError(f"sampling.{name} cannot be set: it follows engine.record_token_times.")
    count_devices(spec.engine.args)


def check_numbers(spec: EvalSpec) -> None:
    """Raises SpecError for numbers that vLLM would refuse once its engine is loaded. A server that runs has its own."""
    for where, given in {"sampling": spec.sampling, "engine.args": spec.engine.args}.items():
        for name in [] if spec.engine.is_remote else given.keys() & NUMBERS[where].keys():
            is_usable, words = NUMBERS[where][name]
            is_vllms = given[name] is None or (where == "engine.args" and isinstance(given[name], str))  # such as 32k
            if not is_vllms and not is_usable(given[name]):
                raise SpecError(f"{where}.{name} is {given[name]!r}. hint: give {words}.")
    low, high = spec.sampling.get("min_tokens") or 0, spec.sampling.get("max_tokens") or math.inf
    if not spec.engine.is_remote and low > high:
        raise SpecError(f"sampling.min_tokens is {low}, more than max_tokens, {high}. hint: lower it.")


def count_devices(args: Mapping[str, Json]) -> int:
    """GPUs that one engine spans: the product of its parallel sizes.

    Raises SpecError for sizes that are not whole numbers.
    """
    sizes = {name: args.get(name, 1) for name in PARALLEL_SIZES}
    for name, size in sizes.items():
        if not isinstance(size, int) or size < 1:
            raise SpecError(f"engine.args.{name} is {size!r}, expected a whole number of at least 1.")
    return math.prod(sizes.values())


def vllm_is_installed() -> bool:
    """Whether some build of vLLM can be imported."""
    return importlib.util.find_spec("vllm") is not None


@cache
def engine_argument_names() -> frozenset[str]:
    """Fields of `vllm.EngineArgs`."""
    return _field_names("engine/arg_utils.py", "EngineArgs")


@cache
def sampling_parameter_names() -> frozenset[str]:
    """Fields of `vllm.SamplingParams`."""
    return frozenset(name for name in _field_names("sampling_params.py", "SamplingParams") if not name.startswith("_"))


def _check_names(where: str, given: list[str], known: frozenset[str]) -> None:
    for name in given:
        if name not in known:
            raise SpecError(f"{where}.{name}: vLLM has no such argument; {nearest(name, sorted(known))}")


def _field_names(module: str, class_name: str) -> frozenset[str]:
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        raise EngineError(
            "vLLM is not installed here. `make setup` installs the build for this machine; "
            "engine.backend: fake runs without it."
        )
    source = Path(next(iter(spec.submodule_search_locations))) / module
    for node in _parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            return frozenset(
                item.target.id
                for item in node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            )
    raise EngineError(f"{source} has no class {class_name}: this vLLM is newer than assayline knows (0.26 to 0.33).")


def _parse(source: str) -> ast.Module:
    """Python 3.11 counts the depth of trees for all threads together, and fails if another one builds a tree too."""
    for _ in range(PARSE_TRIES - 1):
        try:
            return ast.parse(source)
        except SystemError:
            time.sleep(0.05)
    return ast.parse(source)
