"""What exports need in memory and time, by the size of the run: the first must not grow with it.

    python -m benchmarks.exports [--requests 10000 100000 1000000]

Each size is a run that nobody ran (`benchmarks.invented_runs`), exported in every format that streams, each in a
process of its own. `peak MiB` is that process at its highest (VmHWM, kept by Linux). The last line is JSON.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from assayline.store.database import connect
from benchmarks.invented_runs import invent_runs

FORMATS = ("openai-batch", "csv", "jsonl", "parquet", "lm-eval", "vllm-bench")
MIB = 2**20
EXPORT = """
import re, sys
from pathlib import Path
from assayline.export.make import export_run
from assayline.settings import Settings
folder, form, output = map(Path, sys.argv[1:])
export_run(Settings(data_dir=folder), "run-000000", form.name, output)
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


def measure(folder: Path, form: str) -> dict[str, Any]:
    output = folder / "out" / form
    begun_s = time.monotonic()
    command = [sys.executable, "-c", EXPORT, str(folder), form, str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"^(\d+)$", done.stdout, re.M)
    if done.returncode or found is None:
        sys.exit(done.stderr[-2000:])
    files = [output] if output.is_file() else list(output.iterdir())
    return {
        "peak_mib": round(int(found[1]) / 1024),
        "seconds": round(time.monotonic() - begun_s, 1),
        "written_mib": round(sum(file.stat().st_size for file in files) / MIB, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    figures: dict[str, dict[int, Any]] = {form: {} for form in FORMATS}
    for requests in parser.parse_args().requests:
        with tempfile.TemporaryDirectory(prefix="exports-") as name:
            folder = Path(name)
            with connect(folder / "assayline.duckdb", 10) as connection:
                invent_runs(connection, 1, requests)
            for form in FORMATS:
                figures[form][requests] = measured = measure(folder, form)
                print(f"{requests} requests, {form}: {measured}", flush=True)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
