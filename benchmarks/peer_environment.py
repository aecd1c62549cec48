"""Pinned environments of other tools, in .cache/, which share torch and large packages with this environment.

Shared packages come after the environment's own packages on its path. So both sides run the same versions of shared
packages, and another tool's dependencies do not affect this environment.
"""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def prepare_environment(*packages: str) -> Path:
    """Return the Python of an environment with these pinned packages, created if missing. The first one names it."""
    home = ROOT / ".cache" / packages[0].replace("==", "-")
    python, stamp = home / "bin" / "python", home / "ready"
    if not stamp.exists():
        print(f"installing {', '.join(packages)} into {home.relative_to(ROOT)}", flush=True)
        venv.create(home, with_pip=True, clear=True)
        (own,) = home.glob("lib/python*/site-packages")
        (own / "zz_borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        pip = [str(python), "-m", "pip", "install", "-qq", *packages]
        if subprocess.run(pip, check=False, stderr=subprocess.DEVNULL).returncode:
            sys.exit(f"`{' '.join(pip)}` failed. hint: check that the package index has these versions.")
        stamp.touch()
    return python
