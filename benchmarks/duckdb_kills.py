"""Whether DuckDB opens a file again after its writer was killed.

    python -m benchmarks.duckdb_kills [--kills 2000] [--window-ms 30] [--no-checkpoint]

DuckDB alone, no code of this project: a process writes tables, commits, prints a line and closes the file. It gets
SIGKILL at a random moment within --window-ms of that line. Each file that DuckDB then refuses to open is kept, and its
error is printed. With --no-checkpoint the writer leaves its changes in the write-ahead log, as runs do.
The last line is JSON: kills, kills that hit a live process, files that did not open.
"""

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import duckdb

WRITER = """
import sys
import duckdb
connection = duckdb.connect(sys.argv[1])
if sys.argv[2] == "no-checkpoint":
    connection.execute("pragma disable_checkpoint_on_shutdown")
for table in range(20):
    connection.execute(f"create table if not exists t{table} (a bigint, b varchar, c double)")
    connection.execute(f"insert into t{table} select i, 'text ' || i, i / 3 from range(200) r(i)")
print("committed", flush=True)
connection.close()
"""


def kill_a_writer(path: Path, ending: str, wait_s: float) -> bool:
    """Starts a writer and kills it `wait_s` after its commit. Returns whether it was still alive."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path), ending], stdout=subprocess.PIPE)
    assert writer.stdout is not None and writer.stdout.readline() == b"committed\n"
    time.sleep(wait_s)
    writer.kill()
    return writer.wait() == -signal.SIGKILL


def find_error(path: Path) -> str | None:
    """The error with which DuckDB refuses a file; None if it opens and every row can be read."""
    try:
        with duckdb.connect(str(path)) as connection:
            for (table,) in connection.execute("select table_name from duckdb_tables()").fetchall():
                connection.execute(f"select sum(a), max(b), sum(c) from {table}").fetchall()  # noqa: S608 - its own tables
    except duckdb.Error as error:
        return str(error).splitlines()[0]
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=2000, help="writers to kill")
    parser.add_argument("--window-ms", type=float, default=30.0, help="longest time between commit and kill")
    parser.add_argument("--no-checkpoint", action="store_true", help="close without a checkpoint")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    dice = random.Random(arguments.seed)
    folder = Path(tempfile.mkdtemp(prefix="duckdb-kills-"))
    hits, damaged = 0, []
    path = folder / "file.duckdb"
    for number in range(arguments.kills):
        ending = "no-checkpoint" if arguments.no_checkpoint else "checkpoint"
        hits += kill_a_writer(path, ending, dice.uniform(0, arguments.window_ms / 1000))
        if error := find_error(path):
            kept = folder / f"damaged-{number}.duckdb"
            shutil.copy(path, kept)
            damaged.append(error)
            print(f"kill {number}: {kept}: {error}", flush=True)
        if error or number % 50 == 49:  # files grow: begin again
            for left in folder.glob("file.duckdb*"):
                left.unlink()
    if not damaged:
        shutil.rmtree(folder)
    found = {"duckdb": duckdb.__version__, "kills": arguments.kills, "hits": hits, "damaged": len(damaged)}
    print(json.dumps({**found, "no_checkpoint": arguments.no_checkpoint}))


if __name__ == "__main__":
    main()
