"""The database in little memory: what does not fit is spilled to disk, and the work that fits nowhere raises."""

import subprocess
import sys
import tempfile
from pathlib import Path

import duckdb
import pytest

from assayline.errors import StoreError
from assayline.settings import Settings
from assayline.store.database import Connection
from assayline.store.thread import DatabaseThread

LIMIT_BYTES = 400 * 2**20
SORT = """
import os, sys
from pathlib import Path
from assayline.store.database import connect
Path(sys.argv[1]).with_name("cgroup.procs").write_text(str(os.getpid()))
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])  # each thread needs memory of its own
with connect(Path(sys.argv[2]), 0) as connection:
    query = "select count(*) from (select md5(range::varchar) as text from range(6_000_000) order by text offset 1)"
    print(connection.execute(query).fetchall()[0][0])
"""
"""Sorts several hundred MiB."""


def test_database_spills_in_a_group_with_little_memory(memory_limit: Path | None) -> None:
    if memory_limit is None:
        pytest.skip("this machine lets nobody create a control group")
    memory_limit.write_text(str(LIMIT_BYTES))
    with tempfile.TemporaryDirectory(dir="/var/tmp") as disk:  # files in memory would count
        command = [sys.executable, "-c", SORT, str(memory_limit), f"{disk}/data.duckdb"]
        found = subprocess.run(command, check=False, capture_output=True, text=True)
    assert found.returncode == 0, f"{found.returncode}: {found.stderr}"
    assert found.stdout.split()[-1] == "5999999"


def test_query_that_fits_nowhere_raises(settings: Settings) -> None:
    def fail(connection: Connection) -> None:
        raise duckdb.OutOfMemoryException("failed to allocate")

    with pytest.raises(StoreError, match="hint: free space or memory"):
        DatabaseThread(settings).run(fail)
