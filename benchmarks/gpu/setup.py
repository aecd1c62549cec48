"""Settings of all parts: device, shapes of the models, time limits and folders.

A part runs in a separate process, which reads the settings from a JSON file.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from assayline.engines.devices.claims import list_devices
from assayline.settings import Settings
from benchmarks.random_model import build_random_model

Row = dict[str, Any]
Tell = Callable[[Row], None]
"""Records a finding. Findings are kept even if the part fails."""

CONTEXT_TOKENS = 1024
STEP_TOKENS = 8192
GRAPH_SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 192, 256]
GRAPHS = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": GRAPH_SIZES}
"""CUDA graphs for decoding without torch.compile: nearly its speed, and engines start in a quarter of the time."""

PROCESSES = {"own": {}, "vllm": {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}}
"""Environments that place the engine core in the engine's process or in a process of vLLM."""


class SkipPart(Exception):
    """The part cannot run here, with the reason."""


@dataclass(frozen=True)
class Shape:
    """A Llama with random weights: its shape and its workload."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    seats: int
    """max_num_seqs."""
    requests: int
    """Number of requests of one pass."""
    cache_bytes: int
    """Size of the KV cache in bytes."""
    memory_share: float
    """gpu_memory_utilization that fits two engines of a shape on one GPU of 80 GB."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights in bf16: embeddings in and out, attention, gated MLP."""
        head = self.hidden // self.heads
        attention = self.hidden * head * (2 * self.heads + 2 * self.kv_heads)
        return 2 * (2 * self.vocabulary * self.hidden + self.layers * (attention + 3 * self.hidden * self.intermediate))


SMALL = Shape("0.5B", 24, 896, 14, 2, 4864, 151_936, seats=256, requests=3072, cache_bytes=2**31, memory_share=0.2)
"""The shape of Qwen2.5-0.5B."""

LARGE = Shape(
    "8B", 32, 4096, 32, 8, 14_336, 128_256, seats=256, requests=1024, cache_bytes=12 * 2**30, memory_share=0.4
)
"""The shape of Llama-3.1-8B."""


def make_tiny(layers: int, hidden: int) -> Shape:
    """Make a shape for a rehearsal without a GPU."""
    heads = max(hidden // 64, 1)
    return Shape(f"{layers}x{hidden}", layers, hidden, heads, heads, 4 * hidden, 8192, 16, 32, 2**28, 0.3)


@dataclass(frozen=True)
class Setup:
    """Settings of one check."""

    device: str
    """`cuda` or `cpu`."""
    gpus: tuple[str, ...]
    """GPUs as in CUDA_VISIBLE_DEVICES; none on a CPU."""
    shapes: tuple[Shape, ...]
    """Shapes, smallest first."""
    pairs: int
    folder: Path
    """Folder of models and of the runs' data; removed at the end."""
    engine_args: dict[str, Any] = field(default_factory=dict)
    """vLLM arguments that override those of every engine."""

    @property
    def is_cuda(self) -> bool:
        """True on a GPU, False for a rehearsal."""
        return self.device == "cuda"

    @property
    def device_env(self) -> dict[str, str]:
        """Return the environment that binds an engine to the first device."""
        return list_devices(self.device, 1)[0].env

    def build_model(self, shape: Shape) -> Path:
        """Return the folder of config and tokenizer; vLLM generates the weights."""
        return build_random_model(
            self.folder / "models" / shape.name,
            shape.layers,
            shape.hidden,
            weights=False,
            vocabulary=shape.vocabulary,
            intermediate_size=shape.intermediate,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
        )

    def make_args(self, shape: Shape, **changes: Any) -> dict[str, Any]:
        """Return vLLM's arguments for an engine of this shape."""
        common = {
            "max_model_len": CONTEXT_TOKENS,
            "max_num_seqs": shape.seats,
            "max_num_batched_tokens": STEP_TOKENS,
            "dtype": "bfloat16",
            "load_format": "dummy",
            "kv_cache_memory_bytes": shape.cache_bytes,
            "enable_prefix_caching": False,
        }
        own = (
            {"gpu_memory_utilization": shape.memory_share, "compilation_config": GRAPHS}
            if self.is_cuda
            else {"enforce_eager": True}
        )
        return {**common, **own, **changes, **self.engine_args}

    def make_settings(self, name: str) -> Settings:
        """Return settings with folders for one run."""
        return Settings(data_dir=self.folder / name / "data", lock_dir=self.folder / name / "locks")

    def write(self, path: Path) -> None:
        """Write the settings for the process of a part."""
        path.write_text(json.dumps(asdict(self), default=str))


def read_setup(path: Path) -> Setup:
    """Read the settings that `Setup.write` wrote."""
    data = json.loads(path.read_text())
    shapes = tuple(Shape(**shape) for shape in data["shapes"])
    return Setup(**{**data, "gpus": tuple(data["gpus"]), "shapes": shapes, "folder": Path(data["folder"])})
