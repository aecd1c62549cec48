"""Shared fixtures: tests leave the user's machine alone, and the tiny model is built once."""

import contextlib
import fcntl
import functools
import gc
import json
import os
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import vl_convert
from host_kit import forking_hosts, remove_files

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # examples/ is not an installed package

# A shell's background jobs ignore SIGINT and pass that on; the commands under test must respect it.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # an engine's idle threads leave the cores to the other worker's
for size in ("COLUMNS", "LINES"):  # readline sets them for what pytest starts, pytest's workers among them
    os.environ.pop(size, None)

from run_kit import CHAT_TEMPLATE, ENGINE_ARGS, build_tokenizer  # noqa: E402

from assayline.digests import digest_bytes  # noqa: E402
from assayline.engines.devices import claims  # noqa: E402
from assayline.files import replace_file  # noqa: E402
from assayline.settings import Settings  # noqa: E402
from assayline.spec.evaluation import EvalSpec  # noqa: E402
from assayline.spec.file import parse_spec  # noqa: E402
from assayline.store import database  # noqa: E402

# The same examples each time; `make test-examples` has fresh ones, and many.
hypothesis.settings.register_profile("same", derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("fresh", max_examples=2_000, deadline=None, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

MEMORY = Path("/dev/shm")
MEMORY_NEEDED_BYTES = 4 * 2**30
"""What the folders of the tests that are running take at the most, four times over."""


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give processes of tests a user's environment, and pytest's workers, which this process starts, all of it.

    The tests' folders are in memory where there is room: each of thousands of small files is synced to its disk.
    """
    is_worker = hasattr(config, "workerinput")
    if not is_worker:
        os.environ["FORKED_HOSTS"] = str(Path(tempfile.gettempdir()) / f"forked-hosts-{uuid.uuid4().hex}")
    if is_worker or not config.getoption("numprocesses", None):
        paths = [str(ROOT / "tests" / "as_users"), os.environ.get("PYTHONPATH")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_NEEDED_BYTES
    if has_room and not is_worker and not config.option.basetemp:
        config.option.basetemp = str(MEMORY / f"assayline-tests-{os.getpid()}")


def pytest_unconfigure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    remove_files(Path(os.environ["FORKED_HOSTS"]))
    if str(config.option.basetemp).startswith(f"{MEMORY}/assayline-tests-"):
        shutil.rmtree(config.option.basetemp, ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--faults", help="how often tests/run/test_worker_faults.py hurts workers")
    parser.addoption("--kill-seed", default=1, help="its dice")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that start engines and servers first: short ones at the end let the workers end together."""
    marks = ("vllm", "prefect", "ray", "slow")
    heavy = {item.path for item in items if any(item.get_closest_marker(mark) for mark in marks)}
    items.sort(key=lambda item: item.path not in heavy)


def pytest_collection_finish() -> None:
    """Exclude imported modules from garbage collection, which would scan them again and again."""
    gc.freeze()


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Data, locks and Prefect's own files of a test are its own."""
    monkeypatch.setenv("ASSAYLINE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("ASSAYLINE_LOCK_DIR", str(tmp_path / "locks"))
    yield


@pytest.fixture(autouse=True)
def single_threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines of runs in this process have one thread: two that wait for each other crawl next to another worker's.

    And all have the environment of those that tests open themselves, so that they are forked from the same server.
    """
    if request.path.parent.name == "devices":
        return
    share_cores = claims._share_cores

    def share(workers: int, parts: int = 1) -> list[claims.Device]:
        return [replace(device, env={"OMP_NUM_THREADS": "1"}) for device in share_cores(workers, parts)]

    monkeypatch.setattr(claims, "_share_cores", share)


@pytest.fixture(scope="session", autouse=True)
def forked_hosts() -> Iterator[None]:
    """Engines that this process opens are forked from one server, whatever test they belong to."""
    with forking_hosts():
        yield


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with the whole schema and no rows. Making one takes a second, copying it does not."""
    path = tmp_path_factory.mktemp("database") / "empty.duckdb"
    with database.connect(path, 10):
        pass
    os.environ["EMPTY_DATABASE"] = str(path)  # for the processes that tests start, see as_users/
    return path


@pytest.fixture(scope="session")
def weeks(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """The database and the runs of examples/two_weeks.py: a copy of those that one worker makes for all."""
    from examples.two_weeks import make_database

    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    session = tmp_path_factory.getbasetemp().parent if is_worker else tmp_path_factory.getbasetemp()
    made, own = session / "two-weeks", tmp_path_factory.mktemp("weeks") / "data"
    with open(session / "two-weeks.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            make_database(session / "two-weeks-unfinished")
            (session / "two-weeks-unfinished").rename(made)
    shutil.copytree(made, own)
    return Settings(data_dir=own, database=own / "assayline.duckdb")


@pytest.fixture(scope="session", autouse=True)
def copied_databases(empty_database: Path) -> Iterator[None]:
    """New databases of this process are copies of an empty one, and all have one thread: the other worker's core."""
    connect_file = database._connect_file

    def copy_and_connect(path: Path, read_only: bool, config: database.Config) -> Any:
        if path.suffix == ".duckdb" and not path.exists() and not read_only:
            with contextlib.suppress(OSError):
                shutil.copy(empty_database, path)
        return connect_file(path, read_only, {**config, "threads": 1})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "_connect_file", copy_and_connect)
        yield


@pytest.fixture(scope="session", autouse=True)
def bundled_once() -> Iterator[None]:
    """The charts' program takes seconds to bundle, is the same for every page, and is kept for the next session."""
    make = vl_convert.javascript_bundle

    @functools.cache
    def bundle(*asked: str) -> str:
        kept = ROOT / ".cache" / f"bundle-{digest_bytes(repr([vl_convert.__version__, *asked]).encode())}.js"
        with contextlib.suppress(FileNotFoundError):
            return kept.read_text(encoding="utf-8")
        script = make(*asked)
        with contextlib.suppress(OSError):  # another worker keeps it at this moment
            replace_file(kept, lambda file: file.write(script.encode()))
        return script

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vl_convert, "javascript_bundle", bundle)
        yield


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    """Folder of the trained tiny model."""
    from examples.tiny_model import ensure_tiny_model

    return ensure_tiny_model()


@pytest.fixture(scope="session")
def tiny_vlm() -> Path:
    """Folder of the trained model that sees."""
    from examples.tiny_vlm import ensure_tiny_vlm

    return ensure_tiny_vlm()


@pytest.fixture(scope="session")
def tiny_alm() -> Path:
    """Folder of the trained model that hears."""
    from examples.tiny_alm import ensure_tiny_alm

    return ensure_tiny_alm()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings whose folders are the test's own."""
    return Settings(data_dir=tmp_path / "data", lock_dir=tmp_path / "locks", flush_interval_s=0.2, load_interval_s=0.5)


@pytest.fixture(scope="session")
def make_spec(tiny_model: Path) -> Any:
    """Build a spec on the tiny model; keyword arguments override it, one level deep."""

    def make(**changes: Any) -> EvalSpec:
        data: dict[str, Any] = {
            "name": "test",
            "model": str(tiny_model),
            "prompts": {
                "source": {"kind": "file", "path": str(ROOT / "examples" / "arithmetic.jsonl")},
                "columns": {"target": "answer"},
                "template": "{{ question }}",
            },
            "sampling": {"temperature": 0, "max_tokens": 16},
            "engine": {"args": dict(ENGINE_ARGS)},
        }
        for key, value in changes.items():
            data[key] = {**data[key], **value} if isinstance(value, dict) and isinstance(data.get(key), dict) else value
        return parse_spec(data)

    return make


@pytest.fixture(scope="session")
def modest_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with everything but weights: enough for the fake engine."""
    folder = tmp_path_factory.mktemp("models") / "modest"
    tokenizer = build_tokenizer(300)
    tokenizer.chat_template = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "max_position_embeddings": 1024}))
    return folder


@pytest.fixture(scope="session")
def session_tokenizer() -> Any:
    return build_tokenizer()


@pytest.fixture
def tokenizer(session_tokenizer: Any) -> Any:
    """A small real tokenizer with its template as it was, whatever a test before has set."""
    session_tokenizer.chat_template = CHAT_TEMPLATE
    return session_tokenizer


@pytest.fixture(scope="module")
def memory_limit() -> Iterator[Path | None]:
    """The file with the limit of a control group of our own, where the machine lets us make one."""
    for parent in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")):
        group = parent / f"assayline-{uuid.uuid4().hex[:8]}"
        try:
            group.mkdir()
        except OSError:
            continue
        files = [group / name for name in ("memory.limit_in_bytes", "memory.max") if (group / name).exists()]
        if files:
            yield files[0]
            group.rmdir()
            return
        group.rmdir()
    yield None
