"""torchvision beside torch's CPU build: the registry has a build for CUDA only, which then cannot load its operators.

Python code of torchvision refers to two of them as it is imported, which ends the import, and that of transformers and
of most of vLLM's models of images with it. Declared, they need not be there: all but operators on boxes works. Where
torchvision has its operators (a build for CPUs, or torch for CUDA) the added lines do nothing.
"""

import subprocess
from pathlib import Path

FIND = "import sysconfig; print(sysconfig.get_path('platlib'))"
MARK = "# Added by assayline's set-up"
LINES = f"""

{MARK}: declared where they could not be loaded.
if not _has_ops():
    _declared = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _declared.define(_name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def declare_operators(python: Path) -> None:
    """Makes torchvision of this Python importable beside any torch of its version; a second time changes nothing."""
    done = subprocess.run([str(python), "-I", "-c", FIND], capture_output=True, text=True, check=True)
    path = Path(done.stdout.strip()) / "torchvision" / "extension.py"
    text = path.read_text(encoding="utf-8") if path.exists() else MARK
    if MARK in text:
        return
    new = path.with_suffix(".new")  # the file may be a link to uv's cache, which stays as it is
    new.write_text(text + LINES, encoding="utf-8")
    new.replace(path)
