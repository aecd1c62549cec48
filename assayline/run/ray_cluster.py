"""Workers on a Ray cluster: one actor per engine, with as many GPUs as the engine spans, driven by the flow's process.

Ray places the actors and reports nodes and processes that exit. It never repeats a call, so a lost worker stays lost.
Each node needs the same assayline and the model, but neither Prefect nor the run's folder: an exchange returns the
engine's log lines, and media files are sent with their requests.
"""

import atexit
import contextlib
import math
import os
import re
import shutil
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import assayline
from assayline.digests import digest_bytes, digest_package
from assayline.errors import AssaylineError, DeviceError, EngineError, ModelError, SpecError, WorkerLostError
from assayline.files import MAKE_ROOM, write_bytes
from assayline.media.load import is_synthetic
from assayline.model import identify_model
from assayline.records import Media, Request
from assayline.run.worker import Exchanger, News, Worker, WorkOrder
from assayline.settings import Settings, load_settings
from assayline.spec.checks import count_devices
from assayline.spec.evaluation import EvalSpec

ANSWER_MARGIN_S = 0.5
"""Seconds that an exchange may take beyond its waits before the driver checks whether the run was stopped."""

AUTO = "auto"
"""The address in RAY_ADDRESS, which Ray sets in its jobs."""

COLOUR = re.compile(r"\x1b\[[0-9;]*m")

KNOCK_TIMEOUT_S = 10.0
END_WAIT_S = 30.0
"""Seconds that an actor may take to close its engine before it is killed."""

COUNT_INTERVAL_S = 5.0
"""Seconds between polls of the size of the cluster."""

HEAD_WAIT_S = 20.0
"""Seconds without the cluster's head after which the run ends. Ray ends this process after 60, whatever it does."""

PATIENCE_S = 10.0
"""Seconds after which a worker without a place in the cluster is reported."""

MOST_MEDIA_BYTES = 64 * 2**20
"""Maximum bytes of files sent with one exchange; a larger file is sent alone."""


@contextlib.contextmanager
def open_cluster(spec: EvalSpec, settings: Settings) -> "Iterator[RayCluster | None]":
    """Join the Ray cluster of a spec with `runner: ray`. Yields None for any other runner.

    Raises SpecError if Ray is not installed or no cluster answers at the address, DeviceError if it is too small.
    """
    if spec.runner == "local":
        yield None
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise SpecError("runner: ray needs the package ray. hint: pip install 'assayline[ray]'") from None
    # Without an address, Ray would join the cluster named by RAY_ADDRESS or by a file in /tmp.
    address = os.environ.get("RAY_ADDRESS", AUTO) if spec.ray_address == AUTO else spec.ray_address
    place = {"address": address} if address else {"address": "local", "include_dashboard": False}
    handler = signal.getsignal(signal.SIGTERM)
    try:
        if address:
            _knock(address)
        ray.init(**place, log_to_driver=False, logging_level="ERROR")
        cluster = RayCluster(spec, settings)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        ray.shutdown()
        raise SpecError(_explain_failed_join(address, error)) from None
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray's handler would end the process without storing results
    try:
        cluster.check_size()
        yield cluster
    finally:
        if cluster.has_head():
            ray.shutdown()
        else:
            atexit.unregister(ray.shutdown)  # it would wait for the head


def _knock(address: str) -> None:
    """Raise OSError or ValueError if nothing listens at the address. Ray itself would retry for minutes."""
    if address == AUTO:
        raise ValueError("the variable RAY_ADDRESS is not set.")
    if address.startswith("ray://"):
        raise ValueError("Ray's client (ray://) keeps no worker that an evaluation can drive.")
    host, _, port = address.rpartition(":")
    if not 0 < int(port) < 2**16:  # the system would connect to the port of its last 16 bits
        raise ValueError(f"{port} is not a valid port.")
    socket.create_connection((host, int(port)), KNOCK_TIMEOUT_S).close()


def _explain_failed_join(address: str | None, error: Exception) -> str:
    reason = " ".join(str(error).split())[:400]
    if "Version mismatch" in reason:
        hint = "install the same versions of Ray and Python on this machine and on every node."
    elif "token" in reason:
        hint = "set RAY_AUTH_MODE=token, and set the head node's token on this machine and on every node."
    else:
        hint = "pass the address printed by `ray start --head`, as host:port, and run on a node of that cluster."
    return f"Cannot join a Ray cluster at {address or 'this machine'}: {reason} hint: {hint}"


class RayCluster:
    """A cluster that this process has joined."""

    def __init__(self, spec: EvalSpec, settings: Settings) -> None:
        import ray

        self._spec = spec
        self._settings = settings
        self._engine_gpus = count_devices(spec.engine.args)
        self._counted_s = float("-inf")
        self._workers = 1 if spec.workers == "auto" else spec.workers
        self._head = str(ray.get_runtime_context().gcs_address)
        self._heard_s = time.monotonic()

    def count_workers(self) -> int:
        """Return the wanted number of workers: the spec's, or the largest number that the cluster has had room for.

        Raises EngineError if the cluster's head has been gone for `HEAD_WAIT_S`.
        """
        if (now_s := time.monotonic()) - self._counted_s > COUNT_INTERVAL_S:
            self._counted_s = now_s
            if self.has_head():
                self._heard_s = now_s
                if self._spec.workers == "auto":
                    self._workers = max(self._workers, self._count_room())
            elif now_s - self._heard_s > HEAD_WAIT_S:
                raise EngineError(
                    f"The head of the Ray cluster at {self._head} has not answered for {now_s - self._heard_s:.0f} s. "
                    "hint: start the cluster again, then run the same command, which resumes the run; stored answers "
                    "are kept."
                )
        return self._workers

    def has_head(self) -> bool:
        """Return True if the cluster's head listens. Without it, Ray's calls about nodes and actors block."""
        with contextlib.suppress(OSError, ValueError):
            _knock(self._head)
            return True
        return False

    def check_size(self) -> None:
        """Wait for nodes to join. Raises DeviceError if the cluster has too few GPUs for the spec."""
        wanted = 1 if self._spec.workers == "auto" else self._spec.workers
        deadline = time.monotonic() + self._settings.device_wait_s
        while self._uses_gpus() and (room := self._count_room()) < wanted:
            if time.monotonic() >= deadline:
                nodes = _list_nodes()
                gpus = sum(node.get("GPU", 0) for node in nodes)
                raise DeviceError(
                    f"The Ray cluster has {gpus:g} GPUs on {len(nodes)} nodes: room for {room} engines with "
                    f"{self._engine_gpus} GPUs each, but the spec needs {wanted}. hint: lower `workers`, add nodes, "
                    "or wait for nodes with ASSAYLINE_DEVICE_WAIT_S."
                )
            time.sleep(1.0)

    def launch(self, order: WorkOrder) -> Exchanger:
        """Start a worker in the cluster. It is pending until the cluster has room. Raises WorkerLostError."""
        import ray

        if not self.has_head():
            raise WorkerLostError("the head of the Ray cluster does not answer")
        options: dict[str, Any] = {"num_cpus": 1, "max_restarts": 0, "max_task_retries": 0, "max_concurrency": 2}
        if self._is_wide():
            # vLLM's Ray executor reserves the GPUs with its own placement group, one bundle per GPU. The actor holds
            # none, but must be on a node with a GPU driver, from which vLLM infers that it should use CUDA.
            engine = order.open.engine.with_args({"distributed_executor_backend": "ray"})
            order = replace(order, open=replace(order.open, engine=engine))
            options |= {"scheduling_strategy": _prefer_node_with_gpus()}
        elif self._uses_gpus():
            options |= {"num_gpus": self._engine_gpus}
        else:
            options |= {"scheduling_strategy": "SPREAD"}
            order = replace(order, workers_here=math.ceil(order.workers_here / max(1, self._count_room())))
        return RayWorker(ray.remote(_NodeWorker).options(**options).remote(order), order, self.has_head)

    def _uses_gpus(self) -> bool:
        engine = self._spec.engine
        if not engine.needs_device or engine.device == "cpu":
            return False
        return engine.device == "cuda" or any(node.get("GPU") for node in _list_nodes())

    def _is_wide(self) -> bool:
        """Return True if an engine spans several nodes, or the spec selects vLLM's Ray executor."""
        if not self._uses_gpus():
            return False
        largest = max(node.get("GPU", 0) for node in _list_nodes())
        return self._engine_gpus > largest or self._spec.engine.uses_ray_executor

    def _count_room(self) -> int:
        """Return the number of engines that fit on the cluster; without GPUs, one per node."""
        nodes = _list_nodes()
        if not self._uses_gpus():
            return sum(node.get("CPU", 0) >= 1 for node in nodes)
        if self._is_wide():
            return int(sum(node.get("GPU", 0) for node in nodes) // self._engine_gpus)
        return sum(int(node.get("GPU", 0) // self._engine_gpus) for node in nodes)


class RayWorker:
    """The driver's handle of a worker in the cluster."""

    def __init__(self, actor: Any, order: WorkOrder, has_head: Callable[[], bool]) -> None:
        self._actor = actor
        self._order = order
        self._has_head = has_head
        self._log_path = order.log_folder / f"{order.open.worker}.log"
        self._call: Any = None
        self._called_s = 0.0
        self._started_s: float | None = time.monotonic()
        """None once the worker has been reported as pending."""
        self._has_place = self._is_stopped = False
        self._backlog: list[Request] = []
        self._last = News()

    def exchange(self, requests: Sequence[Request], *, is_last: bool, wait_s: float, gather_s: float) -> News:
        """Implement `Exchanger`. Raises WorkerLostError, and the errors of `_NodeWorker`."""
        import ray

        self._backlog.extend(requests)
        if not self._has_place and (is_last or self._is_stopped):
            return News(has_ended=True)
        if self._call is None:
            sent, contents = self._take_backlog()
            self._call = self._actor.exchange.remote(sent, contents, is_last=is_last, wait_s=wait_s, gather_s=gather_s)
            self._called_s = time.monotonic()
        try:
            if not ray.wait([self._call], timeout=wait_s + gather_s + ANSWER_MARGIN_S)[0]:
                return self._wait_on()
            call, self._call = self._call, None
            self._last = ray.get(call)
        except ray.exceptions.RayError as error:
            if isinstance(cause := getattr(error, "cause", None), AssaylineError):
                raise cause from None
            raise WorkerLostError(f"{type(error).__name__}: {_shorten(error)}") from None
        self._has_place = True
        self._write_log(self._last.engine_lines)
        return self._last

    def stop(self) -> None:
        if not self._is_stopped:
            self._is_stopped = True
            self._actor.stop.remote()

    def close(self) -> None:
        """Kill the actor and its engine's process."""
        import ray

        if self._has_place and self._call is None:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(self._actor.close.remote(), timeout=END_WAIT_S)
        if self._has_head():
            ray.kill(self._actor)

    def _wait_on(self) -> News:
        """Return News for a worker that has not answered yet. Raises WorkerLostError past the stall timeout."""
        is_pending = not self._has_place and not self._is_placed()
        if is_pending:
            self._called_s = time.monotonic()
        silent_s, settings = time.monotonic() - self._called_s, self._order.settings
        phase = "STALL" if self._has_place else "START"
        if silent_s > (settings.engine_stall_timeout_s if self._has_place else settings.engine_start_timeout_s):
            raise WorkerLostError(f"it did not answer for {silent_s:.0f} s (ASSAYLINE_ENGINE_{phase}_TIMEOUT_S)")
        news = News(device=self._last.device, window=self._last.window)
        if is_pending and self._started_s is not None and time.monotonic() - self._started_s > PATIENCE_S:
            self._started_s = None
            news.notes.append("Waiting for room in the Ray cluster")
        return news

    def _is_placed(self) -> bool:
        """Return True if the actor has a process, which starts."""
        from ray._private import state

        return self._has_head() and bool(state.actors(self._actor._actor_id.hex()).get("Pid"))

    def _take_backlog(self) -> tuple[list[Request], dict[str, bytes]]:
        """Return the requests of one call, and the contents of their media files by digest."""
        contents: dict[str, bytes] = {}
        count = size = 0
        for request in self._backlog:
            found = _read_media(request, contents)
            size += sum(map(len, found.values()))
            if count and size > MOST_MEDIA_BYTES:
                break
            contents |= found
            count += 1
        sent, self._backlog = self._backlog[:count], self._backlog[count:]
        return sent, contents

    def _write_log(self, lines: Sequence[str]) -> None:
        if lines:
            self._log_path.parent.mkdir(parents=True, exist_ok=True)
            with open(self._log_path, "a", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in lines)


class _NodeWorker:
    """The actor: a worker on its node."""

    def __init__(self, order: WorkOrder) -> None:
        self._folder = Path(mkdtemp(prefix="assayline-"))
        self._media: Counter[str] = Counter()
        """Number of requests that need each file that was sent."""
        self._media_of: dict[str, list[str]] = {}
        self._notes: list[str] = []
        self._is_stopped = False
        self._begun: Future[Worker] = ThreadPoolExecutor(1).submit(self._begin, order)

    def exchange(
        self,
        requests: Sequence[Request],
        contents: Mapping[str, bytes],
        *,
        is_last: bool,
        wait_s: float,
        gather_s: float,
    ) -> News:
        """Implement `Exchanger`, with the media files by digest.

        Raises EngineError or ModelError if this node has another assayline or model.
        """
        if not wait([self._begun], wait_s).done:
            has_ended = is_last or self._is_stopped
            return News(notes=self._take_notes(), has_ended=has_ended)  # no engine yet, so no request was sent
        placed = [self._place_media(request, contents) for request in requests]
        worker = self._begun.result()
        if self._is_stopped:
            worker.stop()
        news = worker.exchange(placed, is_last=is_last, wait_s=wait_s, gather_s=gather_s)
        news.notes[:0] = self._take_notes()
        for completion in news.finished:
            self._drop_media(completion.request_id)
        return news

    def stop(self) -> None:
        self._is_stopped = True

    def close(self) -> None:
        if self._begun.done() and self._begun.exception() is None:
            self._begun.result().close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _begin(self, order: WorkOrder) -> Worker:
        import ray

        node = f"Node {ray.util.get_node_ip_address()} of the Ray cluster"
        self._notes.append(f"Starting on {node[0].lower()}{node[1:]}, process {os.getpid()}")
        if digest_package() != order.package:
            raise EngineError(
                f"{node} has another assayline in {Path(assayline.__file__).parent}: its version is "
                f"{assayline.__version__}, and its code differs. hint: install the flow's assayline on every node."
            )
        settings = order.settings
        settings.pass_on_token()
        model, engine = order.open.model, order.open.engine
        if engine.needs_device:
            try:
                found = identify_model(model, engine.args.get("revision"), order.open.adapter).model_id
            except ModelError as error:
                cause = str(error).partition(" hint: ")[0]
                raise ModelError(
                    f"{node} lacks the model. {cause} hint: copy the model to {model} on every node."
                ) from None
            if found != order.open.model_id:
                raise ModelError(
                    f"{node} has another model in {model}: {found}; the run has {order.open.model_id}. hint: copy the "
                    "model to every node, configuration, tokenizer and code files included."
                )
        if engine.uses_ray_executor:
            os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
        own = settings.model_copy(update={"lock_dir": load_settings().lock_dir})
        return Worker(replace(order, settings=own, log_folder=self._folder / "logs"))

    def _take_notes(self) -> list[str]:
        notes, self._notes = self._notes, []
        return notes

    def _place_media(self, request: Request, contents: Mapping[str, bytes]) -> Request:
        """Replace the media paths of a request by the paths of the files sent with it."""
        placed: list[Media] = []
        digests: list[str] = []
        for media in request.media or ():
            if (content := contents.get(media["digest"])) is not None:
                path = self._folder / "media" / media["digest"]
                if not self._media[media["digest"]]:
                    write_bytes(path, content, MAKE_ROOM)
                self._media[media["digest"]] += 1
                digests.append(media["digest"])
                placed.append({**media, "path": str(path)})
            else:
                placed.append(media)
        if not digests:
            return request
        self._media_of[request.request_id] = digests
        return replace(request, media=placed)

    def _drop_media(self, request_id: str) -> None:
        for digest in self._media_of.pop(request_id, ()):
            self._media[digest] -= 1
            if not self._media[digest]:
                (self._folder / "media" / digest).unlink(missing_ok=True)


def _read_media(request: Request, known: Mapping[str, bytes]) -> dict[str, bytes]:
    """Read a request's unknown files by digest. A changed file is left out: its error row names its path."""
    contents: dict[str, bytes] = {}
    for media in request.media or ():
        if not is_synthetic(media) and media["digest"] not in known:
            with contextlib.suppress(OSError):
                content = Path(media["path"]).read_bytes()
                if digest_bytes(content) == media["digest"]:
                    contents[media["digest"]] = content
    return contents


def _shorten(error: Exception) -> str:
    """Return the beginning and the end of a message, where the cause stands, without colours."""
    text = " ".join(COLOUR.sub("", str(error)).split())
    return text if len(text) <= 300 else f"{text[:100]} … {text[-200:]}"


def _list_nodes() -> list[dict[str, float]]:
    """Return the resources of each node that is alive."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _prefer_node_with_gpus() -> Any:
    """Prefer the node with the most free GPUs."""
    import ray
    from ray._private.state import available_resources_per_node  # as vLLM imports it
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    free = available_resources_per_node()
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU")]
    return NodeAffinitySchedulingStrategy(max(nodes, key=lambda node: free.get(node, {}).get("GPU", 0.0)), soft=True)
