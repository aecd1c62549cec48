"""Shared helpers of flow tests: processes that are ended afterwards, queries of the database, a browser."""

import contextlib
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any, TextIO, cast
from unittest.mock import patch

import duckdb
import psutil
import pyarrow.parquet as pq
import yaml
from run_kit import ENGINE_ARGS, PATIENCE_S, ROOT, wait_for
from websockets.sync.client import ClientConnection, connect

from assayline.flows import cli
from assayline.store.database import find_in_schemas
from assayline.store.parts import count_rows

ONE_THREAD = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
"""An engine's environment: two threads that wait for each other crawl next to another test's."""
SMALL_ENGINE = {**ENGINE_ARGS, "max_num_seqs": 4}
SLOW_ROWS = 60
"""Requests of the fixture slow_spec."""
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
BROWSER_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-default-apps",
    "--disable-quic",
    "--remote-debugging-port=0",
    "--proxy-bypass-list=127.0.0.1",
)
NO_PROXY = "http://127.0.0.1:9"
"""Nobody answers there: a browser with it reaches this machine and nothing else."""
PAGE_TEXT = "(document.body?.innerText ?? '')"
PREFECT_DATABASE = ROOT / ".cache" / f"prefect-{version('prefect')}.db"
"""A database of Prefect's with all its tables and hardly any rows, kept by the first session of tests with a server.

Making it is a hundred migrations, and more than half of a server's first start.
"""


def copy_prefect_database(home: Path) -> None:
    """Give a new home of Prefect its database, if there is one."""
    home.mkdir(exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        shutil.copy(PREFECT_DATABASE, home / "prefect.db")


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def started(arguments: list[str], env: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, output in `log`; the whole group is gone at the end."""
    with open(log, "ab") as output:
        process = subprocess.Popen(
            arguments,
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _end_group(process)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=PATIENCE_S)


class Server:
    """A Prefect server that a test may kill, and start again on the same port and the same database."""

    def __init__(self, env: dict[str, str], log: Path) -> None:
        self._log, self._port = log, free_port()
        self.url = f"http://127.0.0.1:{self._port}/api"
        self._env = {**env, "PREFECT_UI_API_URL": self.url, "PREFECT_UI_URL": self.url.removesuffix("/api")}

    @contextlib.contextmanager
    def started(self) -> Iterator[subprocess.Popen[bytes]]:
        """The server's process, which answers."""
        command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(self._port)]
        with started(command, self._env, self._log) as process:

            def is_up() -> bool:
                assert process.poll() is None, self._log.read_text()
                try:
                    with urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
                        return bool(answer.status == 200)
                except OSError:
                    return False

            wait_for(is_up, f"Prefect's server answers; its log is {self._log}")
            yield process


def processes_of(data_dir: Path) -> list[psutil.Process]:
    """Processes that were started, at whatever remove, with this data folder in their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("ASSAYLINE_DATA_DIR") == str(data_dir) and process.status() != "zombie":
                found.append(process)
    return found


def assert_nothing_runs(data_dir: Path) -> None:
    """Assert that no process with this data folder runs, after a moment in which the system ends them."""
    left = processes_of(data_dir)
    wait_for(lambda: not processes_of(data_dir), f"nothing is left, of at first {left}")


def hosts_of(data_dir: Path) -> list[psutil.Process]:
    """Return the processes that hold an engine, without those that they forked."""
    found = []
    for process in processes_of(data_dir):
        with contextlib.suppress(psutil.Error):
            parent = process.parent()
            if is_host(process) and not (parent is not None and is_host(parent)):
                found.append(process)
    return found


def is_host(process: psutil.Process) -> bool:
    return "assayline.engines.host" in process.cmdline()


def kill_all(processes: list[psutil.Process]) -> None:
    """Kills what is left of a test, and waits until it is gone."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(processes, timeout=PATIENCE_S)


def query(data_dir: Path, sql: str, *values: object) -> list[Any]:
    """Rows of a query on the database in a data folder; single values where it has one column."""
    with duckdb.connect(data_dir / "assayline.duckdb", read_only=True) as connection:
        find_in_schemas(connection)
        rows = connection.execute(sql, list(values)).fetchall()
    return [row[0] if len(row) == 1 else row for row in rows]


def answered_parts(data_dir: Path) -> list[Path]:
    """Parts with answers, of all runs in a data folder."""
    return sorted(data_dir.glob("runs/*/parts/completions/*.parquet"))


def count_in_parts(data_dir: Path) -> int:
    """Answers that are durable, loaded or not."""
    while True:
        with contextlib.suppress(FileNotFoundError):  # merged meanwhile
            return sum(count_rows(part) for part in answered_parts(data_dir))


HOLDER = """
import sys, time, duckdb
for attempt in range(600):
    try:
        connection = duckdb.connect(sys.argv[1], read_only=sys.argv[2] == "read-only")
        break
    except duckdb.Error:
        time.sleep(0.02)
tables = [name for name, in connection.sql("select table_name from duckdb_tables()").fetchall()]
count = "select count(*) from raw.completions"
print(connection.sql(count).fetchall()[0][0] if "completions" in tables else 0, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def database_held(data_dir: Path, read_only: bool = False) -> Iterator[tuple[int, int]]:
    """Another process holds the database meanwhile: its process id, and the completions that it found loaded."""
    data_dir.mkdir(parents=True, exist_ok=True)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(data_dir / "assayline.duckdb"), "read-only" if read_only else "writing"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        yield holder.pid, int(holder.stdout.readline())
    finally:
        holder.kill()
        holder.communicate(timeout=PATIENCE_S)


@contextlib.contextmanager
def listening(told: list[str]) -> Iterator[str]:
    """The URL of a listener, which notes what it is told."""

    class Listener(BaseHTTPRequestHandler):
        timeout = 10
        """In seconds: who connects and sends nothing would keep `shutdown` from returning."""

        def do_POST(self) -> None:
            told.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    listener = HTTPServer(("127.0.0.1", 0), Listener)
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.server_port}/"
    finally:
        listener.shutdown()
        listener.server_close()


def write_rows(path: Path, count: int) -> Path:
    """A prompt set of small additions, all different."""
    rows = ({"question": f"What is {i} + {i}?", "answer": f"{i}?"} for i in range(count))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def feed_pipe(pipe: Path, feed: Callable[[TextIO], None]) -> threading.Thread:
    """A prompt file whose lines come when `feed` writes them, so that a test decides how far a run gets."""
    os.mkfifo(pipe)

    def write() -> None:
        with contextlib.suppress(BrokenPipeError), open(pipe, "w", buffering=1, encoding="utf-8") as lines:
            feed(lines)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    return thread


def write_spec(path: Path, data: dict[str, Any]) -> Path:
    """A spec as a YAML file."""
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return path


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that has ended."""

    code: int
    out: str
    err: str


def run_command(arguments: list[str], env: dict[str, str]) -> Finished:
    """Runs a command in the repository's folder to its end; kills its group if that takes too long."""
    process = subprocess.Popen(
        arguments,
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        out, err = _read_rest(process)
        raise AssertionError(f"{arguments} did not end within {PATIENCE_S:.0f} s:\n{out}\n{err}") from None
    return Finished(process.returncode, out, err)


def _read_rest(process: "subprocess.Popen[str]") -> tuple[str, str]:
    """Return the output of a killed process; nothing if a child in another group still holds its output."""
    try:
        return process.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        return "", ""


def run_prefect(env: dict[str, str], *arguments: str) -> Finished:
    """Runs a command of Prefect's, which must succeed."""
    run = run_command([sys.executable, "-m", "prefect", *arguments], env)
    assert run.code == 0, run.out + run.err
    return run


def run_here(name: str, *arguments: str | Path) -> Finished:
    """The same command in this process, without its imports: what it prints, and its exit code."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), patch.dict(os.environ):
        code = cli.run(name, [*map(str, arguments)])
    return Finished(code, out.getvalue(), err.getvalue())


def evaluate_command(*arguments: str | Path) -> list[str]:
    """The command line of the flow."""
    return [sys.executable, "-m", "assayline", "evaluate", *map(str, arguments)]


def trial_spec(model: Path, rows: Path) -> dict[str, Any]:
    """A spec for the fake engine, as data: it answers with a prompt's last word, which is the target."""
    return {
        "name": "trial",
        "model": str(model),
        "prompts": {
            "source": {"kind": "file", "path": str(rows)},
            "columns": {"target": "answer"},
            "template": "{{ question }}",
        },
        "sampling": {"max_tokens": 4},
        "engine": {"backend": "fake"},
        "shard_requests": 10,
    }


def endless_spec(model: Path) -> dict[str, Any]:
    """A spec for a real engine, as data, that takes minutes but has its first answers soon."""
    rows = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a in range(5) for b in range(4)]
    return {
        "name": "endless",
        "model": str(model),
        "prompts": {
            "name": "sums",
            "source": {"kind": "inline", "rows": rows},
            "columns": {"target": "answer"},
            "template": "{{ question }}",
            "repeats": 500,
        },
        "sampling": {"temperature": 0, "max_tokens": 100, "ignore_eos": True},
        "engine": {"env": ONE_THREAD, "args": dict(SMALL_ENGINE)},
    }


def count_opened(data_dir: Path) -> int:
    """Engines that are open or were, by the parts."""
    parts = data_dir.glob("runs/*/parts/engine_events/*.parquet")
    return sum(event == "opened" for part in parts for event in pq.read_table(part)["event"].to_pylist())


VIOLATIONS = """
axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"] }).then((found) =>
  found.violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.html.slice(0, 99)).join(" ")}`))
"""


class Page:
    """One tab of a real headless Chromium, driven by its DevTools protocol."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._sent = 0

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Calls a method of the protocol and returns its result."""
        self._sent += 1
        self._socket.send(json.dumps({"id": self._sent, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.recv(timeout=PATIENCE_S))
            if answer.get("id") == self._sent:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, url: str) -> None:
        """Goes to a page."""
        self.call("Page.navigate", url=url)

    def ask(self, expression: str) -> Any:
        """Evaluates JavaScript and returns its value."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """The first true value of an expression."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := self.ask(expression)):
            assert time.monotonic() < deadline, f"{expression} on a page that reads: {self.ask(PAGE_TEXT)}"
            time.sleep(0.05)
        return found

    def list_violations(self) -> list[str]:
        """Rules of WCAG 2.1, level A or AA, that axe-core finds broken, each with elements."""
        self.call("Runtime.evaluate", expression=(files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8"))
        return cast(list[str], self.ask(VIOLATIONS))

    def click(self, expression: str) -> None:
        """Clicks the middle of an element as a mouse does."""
        self.wait_for(f"!!({expression})")
        self.ask(f"({expression}).scrollIntoView({{block: 'center'}})")
        box = self.ask(f"({expression}).getBoundingClientRect().toJSON()")
        at = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2, "button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type="mousePressed", **at)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", **at)

    def write(self, expression: str, text: str) -> None:
        """Write into a field."""
        self.click(expression)
        self.call("Input.insertText", text=text)


@contextlib.contextmanager
def opened_browser(profile: Path, proxy: str = NO_PROXY) -> Iterator[Page]:
    """A browser with one tab; it is gone at the end. `proxy` gets what it asks other machines for."""
    assert BROWSER is not None
    own = [f"--proxy-server={proxy}", f"--user-data-dir={profile}", "--window-size=1400,1000"]
    process = subprocess.Popen(
        [BROWSER, *BROWSER_OPTIONS, *own, "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        port_file = profile / "DevToolsActivePort"
        deadline = time.monotonic() + PATIENCE_S
        while not (port_file.exists() and port_file.read_text()):
            assert process.poll() is None and time.monotonic() < deadline, "Chromium does not start"
            time.sleep(0.05)
        tabs = f"http://127.0.0.1:{port_file.read_text().split()[0]}/json"
        with urllib.request.urlopen(tabs, timeout=PATIENCE_S) as answer:
            (tab,) = [target for target in json.load(answer) if target["type"] == "page"]
        with connect(tab["webSocketDebuggerUrl"], max_size=None) as socket:
            yield Page(socket)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=PATIENCE_S)
