"""The Python API (docs/guides/python-api.md): asking an engine, and the operations of the command line."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assayline.api.engine import Answer, Ask, Engine
    from assayline.api.operations import benchmark, bisect, compare, evaluate, gate, night, reread, suite

__all__ = ["Answer", "Ask", "Engine", "benchmark", "bisect", "compare", "evaluate", "gate", "night", "reread", "suite"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "engine" if name in ("Answer", "Ask", "Engine") else "operations"
    return getattr(import_module(f"assayline.api.{home}"), name)
