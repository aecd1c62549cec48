"""Evaluate and benchmark language models: accuracy, latency, throughput and cost.

The core does not import Prefect. `flows/` compose it, `tasks/` wrap it, `sql/` defines every metric. The Python API
(docs/guides/python-api.md) is imported on first use, so that commands start sooner; `__init__.pyi` has its types.
"""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"
__all__ = ["Answer", "Ask", "Engine", "__version__", "evaluate"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("assayline.api"), name)
