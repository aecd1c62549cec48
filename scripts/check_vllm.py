"""Whether a vLLM that need not run here has what assayline uses of it: from a wheel, or from its folder.

    python scripts/check_vllm.py vllm-0.33.0-….whl …

Names, methods with the parameters that are passed to them, and fields, as listed in
assayline/engines/host/vllm/internals.py. Exit code 1 if one of them lacks something.
"""

import sys
import tempfile
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from assayline.engines.host.vllm.internals import NEEDS, find_missing


def check(source: Path) -> list[str]:
    """What is missing in a wheel, or in a folder that holds `vllm/`."""
    if source.is_dir():
        return find_missing(source / "vllm")
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(source) as wheel:
        wheel.extractall(folder, [name for name in wheel.namelist() if name.startswith("vllm/") and name[-3:] == ".py"])
        return find_missing(Path(folder) / "vllm")


def main(sources: list[str]) -> int:
    """Exit code."""
    members = sum(len(needed.split()) for needed in NEEDS.values())
    code = 0
    for source in sources:
        missing = check(Path(source))
        found = (
            f"lacks {', '.join(missing)}" if missing else f"has all {len(NEEDS)} classes and files, {members} members"
        )
        print(f"{Path(source).name}: {found}")
        code = code or int(bool(missing))
    return code


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
