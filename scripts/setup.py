"""Makes .venv from the lock files: vLLM's CUDA build where an NVIDIA driver answers, its CPU build elsewhere.

    python3 scripts/setup.py [--dev] [--wheels FOLDER]
    python3 scripts/setup.py --check
    python3 scripts/setup.py wheels [--wheels FOLDER] [--target cpu|cuda] [--python 3.12]

Needs Python 3.11 or newer and nothing else. What is installed is written to .venv/installed; a second call with the
same lock files does nothing. `wheels` fills a folder for machines without internet. `--check` installs nothing and says
which vLLM is there, and which ones are known to work.
"""

import sys

# This file must be readable for any Python, so that an old one gets a sentence and no SyntaxError.
if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(
        "setup: this is Python %d.%d (%s). Expected: 3.11 or newer. Try: make demo PYTHON=python3.12"  # noqa: UP031
        % (sys.version_info[0], sys.version_info[1], sys.executable)
    )

from installing.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
