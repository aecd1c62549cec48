"""Names of vLLM's arguments, known without importing vLLM.

Importing vLLM takes seconds and hundreds of MB, and initializes a device. So the names are read from the class bodies
in the source of the installed package. vLLM itself checks the values in the engine process, before the model loads.
"""

import ast
import importlib.util
import math
import subprocess
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from assayline import __version__
from assayline.digests import digest_package
from assayline.errors import SETUP, EngineError, SpecError
from assayline.records import Json
from assayline.spec.evaluation import EvalSpec
from assayline.words import nearest

OURS = {
    "model": "the spec field `model` sets it",
    "revision": "the spec field `revision` sets it",
    "disable_log_stats": "timings need vLLM's statistics, so they are always on",
    "data_parallel_size": "each engine is one replica. hint: set `workers: N` for independent engines, or use "
    "engine.backend: server without a url, whose `vllm serve` takes it",
    "stream_interval": "engine.record_token_times records every token",
}
"""Engine arguments that the spec sets through other fields, with the reason."""

PARALLEL_SIZES = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "prefill_context_parallel_size",
    "data_parallel_size",
)
"""Arguments whose product is the number of GPUs; decode_context_parallel_size reuses the GPUs of the tensor shards."""


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
"""Rules of vLLM 0.32: SamplingParams._verify_args in sampling_params.py, and the fields of config/cache.py,
scheduler.py and model.py."""

PARSE_TRIES = 5


def check_arguments(spec: EvalSpec) -> None:
    """Raise SpecError for engine arguments and sampling parameters that the installed vLLM does not have.

    The fake engine and an external server do not need vLLM; their sampling is checked if vLLM is installed.
    """
    check_numbers(spec)
    python = spec.engine.python
    if not spec.engine.needs_device and not vllm_is_installed():
        return
    _check_names("engine.args", spec.engine.args, engine_argument_types(python))
    _check_names("sampling", spec.sampling, sampling_parameter_types(python))
    for name, kind in NESTED_SAMPLING.items():
        if isinstance(given := spec.sampling.get(name), dict):
            _check_names(f"sampling.{name}", given, sampling_parameter_types(python, kind))
    for name in spec.engine.args:
        if name in OURS and not (spec.engine.is_served and name == "data_parallel_size"):
            raise SpecError(f"engine.args.{name} cannot be set: {OURS[name]}.")
    for name in ("output_kind", "stream_interval"):
        if name in spec.sampling:
            raise SpecError(
                f"sampling.{name} cannot be set: engine.record_token_times sets it. hint: remove it from sampling."
            )
    count_devices(spec.engine.args)


NESTED_SAMPLING = {
    "structured_outputs": "StructuredOutputsParams",
    "repetition_detection": "RepetitionDetectionParams",
}
"""Sampling parameters that are objects in vLLM and mappings in a spec, with their classes."""


def check_numbers(spec: EvalSpec) -> None:
    """Raise SpecError for numbers that vLLM would reject after loading. An external server checks its own."""
    for where, given in {"sampling": spec.sampling, "engine.args": spec.engine.args}.items():
        for name in [] if spec.engine.is_remote else given.keys() & NUMBERS[where].keys():
            is_usable, words = NUMBERS[where][name]
            is_vllms = given[name] is None or (where == "engine.args" and isinstance(given[name], str))  # such as 32k
            if not is_vllms and not is_usable(given[name]):
                raise SpecError(f"{where}.{name} is {given[name]!r}. hint: set it to {words}.")
    low, high = spec.sampling.get("min_tokens") or 0, spec.sampling.get("max_tokens") or math.inf
    if not spec.engine.is_remote and low > high:
        raise SpecError(f"sampling.min_tokens ({low}) exceeds max_tokens ({high}). hint: lower min_tokens.")


def count_devices(args: Mapping[str, Json]) -> int:
    """Return the number of GPUs of one engine: the product of its parallel sizes.

    Raises SpecError for a size that is not a whole number.
    """
    sizes = {name: args.get(name, 1) for name in PARALLEL_SIZES}
    for name, size in sizes.items():
        if not isinstance(size, int) or size < 1:
            raise SpecError(f"engine.args.{name} is {size!r}. hint: set it to a whole number of at least 1.")
    return math.prod(sizes.values())


def vllm_is_installed() -> bool:
    """Return True if any build of vLLM is installed."""
    return importlib.util.find_spec("vllm") is not None


@cache
def engine_argument_types(python: str | None = None) -> dict[str, str]:
    """Return the types of the fields of `vllm.EngineArgs` by name; `python`: of another environment's vLLM."""
    return _read_fields("engine/arg_utils.py", "EngineArgs", python)


@cache
def sampling_parameter_types(python: str | None = None, kind: str = "SamplingParams") -> dict[str, str]:
    """Return the types of the public fields of `vllm.SamplingParams`, or a class of its values, by name."""
    fields = _read_fields("sampling_params.py", kind, python)
    return {name: kind for name, kind in fields.items() if not name.startswith("_")}


def _check_names(where: str, given: Mapping[str, Json], known: Mapping[str, str]) -> None:
    for name, value in given.items():
        if name not in known:
            raise SpecError(f"{where}.{name}: vLLM has no such argument; {nearest(name, sorted(known))}")
        if isinstance(value, str) and known[name].removesuffix(" | None") == "bool":  # 'no' would be true
            raise SpecError(f"{where}.{name} is {value!r}. hint: set it to true or false.")


def _read_fields(module: str, class_name: str, python: str | None) -> dict[str, str]:
    source = (_find_other_vllm(python) if python else _find_vllm()) / module
    for node in _parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            return {
                item.target.id: ast.unparse(item.annotation)
                for item in node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            }
    raise EngineError(
        f"{source} has no class {class_name}: this version of vLLM is not supported. hint: install vLLM 0.26 to 0.33."
    )


def _find_vllm() -> Path:
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        raise EngineError(
            f"vLLM is not installed. hint: {SETUP} installs the build for this machine; engine.backend: fake runs "
            "without vLLM."
        )
    return Path(next(iter(spec.submodule_search_locations)))


@cache
def _find_other_vllm(python: str) -> Path:
    """Return the folder of an environment's vLLM. Raises SpecError unless this assayline is installed there, too."""
    try:
        told = subprocess.run([python, "-c", _TELL], capture_output=True, text=True, timeout=TELL_S, check=False)
        ours, digest, *folders = [*told.stdout.split("\n"), ""][:3]
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SpecError(f"engine.python {python} does not run: {error}. hint: give the path of a Python.") from None
    is_same = digest == digest_package()
    if told.returncode or not is_same or not any(folders):
        wanted = f"assayline {__version__} with the same code" + (f" (it has {ours})" if ours else "")
        lacks = "vLLM" if is_same else wanted
        raise SpecError(f"The environment of engine.python {python} lacks {lacks}. hint: install it there with pip.")
    return Path(folders[0])


TELL_S = 60.0
_TELL = """
import importlib.util as util
ours = digest = ""
try:
    from assayline import __version__ as ours
    from assayline.digests import digest_package
    digest = digest_package()
except ImportError:
    pass
vllm = util.find_spec("vllm")
print(ours)
print(digest)
print(vllm.submodule_search_locations[0] if vllm else "")
"""


def _parse(source: str) -> ast.Module:
    """Parse with retries: Python 3.11 counts tree depth over all threads and fails if another thread parses as well."""
    for _ in range(PARSE_TRIES - 1):
        try:
            return ast.parse(source)
        except SystemError:
            time.sleep(0.05)
    return ast.parse(source)
