"""For the processes that tests start: they find what users have, and not what is there for developers alone.

Python imports a module of this name at its start. vLLM, Prefect and transformers import these packages where they find
them, which takes seconds; an installation of `locks/cpu.txt` has none of them.
"""

import sys

for name in ("datasets", "ray", "scipy", "statsmodels"):
    sys.modules.setdefault(name, None)
