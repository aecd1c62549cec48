"""Environments for what we are measured against: in .cache/, pinned, borrowing torch and its like from this one.

Borrowed packages come after the environment's own on its path, so that both sides run the same versions of what they
share, and a peer's other dependencies never touch ours.
"""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def prepare_environment(*packages: str) -> Path:
    """The Python of an environment with these pinned packages, made if it is not there; the first gives its name."""
    home = ROOT / ".cache" / packages[0].replace("==", "-")
    python, stamp = home / "bin" / "python", home / "ready"
    if not stamp.exists():
        print(f"installing {', '.join(packages)} into {home.relative_to(ROOT)}", flush=True)
        venv.create(home, with_pip=True, clear=True)
        (own,) = home.glob("lib/python*/site-packages")
        (own / "zz_borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        pip = [str(python), "-m", "pip", "install", "-qq", *packages]
        if subprocess.run(pip, check=False, stderr=subprocess.DEVNULL).returncode:
            sys.exit(f"`{' '.join(pip)}` failed. Is there a package index that has them?")
        stamp.touch()
    return python
