"""Workers on a Ray cluster: an actor per engine, with as many GPUs as the engine spans, driven by the flow's process.

Ray places the actors, and finds nodes and processes that die; it never repeats a call, so a lost worker is lost. The
nodes need the same assayline and the model, but neither Prefect nor the run's folder: what an engine logs comes with
the exchange, and a media file that a node does not see is sent along with its requests.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from assayline import __version__
from assayline.digests import digest_bytes
from assayline.errors import DeviceError, ModelError, SpecError, WorkerLostError
from assayline.evaluation.worker import Exchanger, News, Worker, WorkOrder
from assayline.files import MAKE_ROOM, write_bytes
from assayline.media.synthetic import is_synthetic
from assayline.model import identify_model
from assayline.records import Request
from assayline.settings import Settings
from assayline.spec.checks import count_devices
from assayline.spec.evaluation import EvalSpec

ANSWER_MARGIN_S = 0.5
"""How long an exchange may take beyond its waits before the driver looks whether the run was stopped."""

END_WAIT_S = 30.0
"""How long an actor may take to close its engine before it is killed."""

LOOK_INTERVAL_S = 5.0
"""Between looks at the size of the cluster."""


@contextlib.contextmanager
def open_cluster(spec: EvalSpec, settings: Settings) -> "Iterator[Cluster | None]":
    """The Ray cluster of a spec with `runner: ray`, None for one that runs on this machine.

    Raises SpecError if Ray is not installed or there is no cluster at the address, DeviceError if it is too small.
    """
    if spec.runner == "local":
        yield None
        return
    try:
        import ray
    except ImportError:
        raise SpecError("runner: ray needs the extra `ray`. hint: pip install 'assayline[ray]'") from None
    # Without an address Ray would join what RAY_ADDRESS or its temporary folder names, whosever cluster that is.
    local = {"address": "local", "include_dashboard": False}
    try:
        ray.init(**({"address": spec.ray_address} if spec.ray_address else local), log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise SpecError(
            f"There is no Ray cluster to join at {spec.ray_address or 'this machine'}: {error}. hint: give the address "
            "that `ray start --head` printed as ray_address, and the same versions of Ray and Python on every node."
        ) from None
    try:
        cluster = Cluster(spec, settings)
        cluster.check_size()
        yield cluster
    finally:
        ray.shutdown()


class Cluster:
    """The cluster that this process has joined."""

    def __init__(self, spec: EvalSpec, settings: Settings) -> None:
        self._spec = spec
        self._settings = settings
        self._engine_gpus = count_devices(spec.engine.args)
        self._counted_s = float("-inf")
        self._workers = 1

    def count_workers(self) -> int:
        """How many workers there are to be: as the spec says, or as many as the cluster has room for now."""
        if self._spec.workers != "auto":
            return self._spec.workers
        if time.monotonic() - self._counted_s > LOOK_INTERVAL_S:
            self._counted_s = time.monotonic()
            self._workers = max(1, self._workers, self._count_room())
        return self._workers

    def check_size(self) -> None:
        """Waits for nodes that are to come. Raises DeviceError if the cluster has too few GPUs for the spec."""
        wanted = 1 if self._spec.workers == "auto" else self._spec.workers
        deadline = time.monotonic() + self._settings.device_wait_s
        while self._uses_gpus() and self._count_room() < wanted:
            if time.monotonic() >= deadline:
                gpus = sum(node.get("GPU", 0) for node in _list_nodes())
                raise DeviceError(
                    f"The Ray cluster has {gpus:g} GPUs on {len(_list_nodes())} nodes: room for {self._count_room()} "
                    f"engines of {self._engine_gpus} GPUs each, and {wanted} are asked for. hint: lower `workers`, add "
                    "nodes, or wait for them with ASSAYLINE_DEVICE_WAIT_S."
                )
            time.sleep(1.0)

    def launch(self, order: WorkOrder) -> Exchanger:
        """Starts a worker somewhere in the cluster."""
        import ray

        options: dict[str, Any] = {"num_cpus": 1, "max_restarts": 0, "max_task_retries": 0, "max_concurrency": 2}
        if self._is_wide():  # vLLM's own Ray executor places its processes; this one must be on a node with a GPU
            order = replace(order, model_args={"distributed_executor_backend": "ray", **order.model_args})
            options |= {"scheduling_strategy": _prefer_node_with_gpu()}
        elif self._uses_gpus():
            options |= {"num_gpus": self._engine_gpus}
        else:
            options |= {"scheduling_strategy": "SPREAD"}
        return RayWorker(ray.remote(_NodeWorker).options(**options).remote(order), order)

    def _uses_gpus(self) -> bool:
        engine = self._spec.engine
        if not engine.needs_device or engine.device == "cpu":
            return False
        return engine.device == "cuda" or any(node.get("GPU") for node in _list_nodes())

    def _is_wide(self) -> bool:
        """Whether an engine spans several nodes."""
        return self._uses_gpus() and self._engine_gpus > max(node.get("GPU", 0) for node in _list_nodes())

    def _count_room(self) -> int:
        """Engines that the cluster has room for; without GPUs, one per node."""
        nodes = _list_nodes()
        if not self._uses_gpus():
            return sum(node.get("CPU", 0) >= 1 for node in nodes)
        if self._is_wide():
            return int(sum(node.get("GPU", 0) for node in nodes) // self._engine_gpus)
        return sum(int(node.get("GPU", 0) // self._engine_gpus) for node in nodes)


class RayWorker:
    """A worker of the cluster, as this process drives it."""

    def __init__(self, actor: Any, order: WorkOrder) -> None:
        self._actor = actor
        self._order = order
        self._log_path = order.log_folder / f"{order.worker}.log"
        self._sees_files: bool | None = None
        self._call: Any = actor.begin.remote()
        self._called_s = time.monotonic()
        self._backlog: list[Request] = []
        self._last = News()

    def exchange(self, requests: Sequence[Request], *, is_last: bool, wait_s: float, gather_s: float) -> News:
        """As `Exchanger` says. Raises WorkerLostError, and what keeps the node from working for the run."""
        import ray

        self._backlog.extend(requests)
        if self._call is None:
            contents = {} if self._sees_files else _read_media(self._backlog)
            self._call = self._actor.exchange.remote(
                self._backlog, contents, is_last=is_last, wait_s=wait_s, gather_s=gather_s
            )
            self._called_s, self._backlog = time.monotonic(), []
        try:
            if not ray.wait([self._call], timeout=wait_s + gather_s + ANSWER_MARGIN_S)[0]:
                self._check_silence()
                return News(device=self._last.device, window=self._last.window)
            call, self._call = self._call, None
            answer = ray.get(call)
        except ray.exceptions.RayError as error:
            raise WorkerLostError(f"{type(error).__name__}: {str(error).splitlines()[0]}") from None
        if isinstance(answer, News):
            self._last = answer
            self._write_log(answer.engine_lines)
            return answer
        if isinstance(answer, Exception):
            raise answer
        self._sees_files = bool(answer)
        return self._last

    def stop(self) -> None:
        """As `Exchanger` says."""
        self._actor.stop.remote()

    def close(self) -> None:
        """Ends the actor, and with it its engine's process."""
        import ray

        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(self._actor.close.remote(), timeout=0.0 if self._call is not None else END_WAIT_S)
        ray.kill(self._actor)

    def _check_silence(self) -> None:
        if (silent_s := time.monotonic() - self._called_s) > self._order.settings.engine_stall_timeout_s:
            raise WorkerLostError(f"it has not answered for {silent_s:.0f} s (ASSAYLINE_ENGINE_STALL_TIMEOUT_S)")

    def _write_log(self, lines: Sequence[str]) -> None:
        if lines:
            self._log_path.parent.mkdir(parents=True, exist_ok=True)
            with open(self._log_path, "a", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in lines)


class _NodeWorker:
    """The actor: a worker on its node."""

    def __init__(self, order: WorkOrder) -> None:
        self._folder = Path(mkdtemp(prefix="assayline-"))
        self._order = order
        self._worker: Worker | None = None
        self._media: Counter[str] = Counter()
        self._media_of: dict[str, list[str]] = {}

    def begin(self) -> bool | Exception:
        """Starts the engine. Returns whether the run's files are seen here, or what keeps this node from working."""
        import ray

        order = self._order
        try:
            model = identify_model(order.model, order.model_args.get("revision")) if _has_files(order) else None
        except ModelError as error:
            return ModelError(f"Node {ray.util.get_node_ip_address()} of the Ray cluster lacks the model. {error}")
        if model is not None and model.model_id != order.model_id:
            return ModelError(
                f"Node {ray.util.get_node_ip_address()} of the Ray cluster has another model in {order.model}: "
                f"{model.model_id}, and the run has {order.model_id}. hint: copy the model to it, code files included."
            )
        sees_files = (order.log_folder.parent / "run.json").exists()
        order.settings.pass_on_token()
        self._worker = Worker(replace(order, log_folder=self._folder / "logs"))
        return sees_files

    def version(self) -> str:
        """Of the assayline that this node has."""
        return __version__

    def exchange(
        self,
        requests: Sequence[Request],
        contents: Mapping[str, bytes],
        *,
        is_last: bool,
        wait_s: float,
        gather_s: float,
    ) -> News:
        """As `Exchanger` says; `contents` are the media of the requests by digest, if the node does not see them."""
        assert self._worker is not None, "begin comes first"
        placed = [self._place_media(request, contents) for request in requests] if contents else requests
        news = self._worker.exchange(placed, is_last=is_last, wait_s=wait_s, gather_s=gather_s)
        for completion in news.finished if self._media_of else ():
            self._drop_media(completion.request_id)
        return news

    def stop(self) -> None:
        """As `Exchanger` says."""
        if self._worker is not None:
            self._worker.stop()

    def close(self) -> None:
        """As `Exchanger` says."""
        if self._worker is not None:
            self._worker.close()

    def _place_media(self, request: Request, contents: Mapping[str, bytes]) -> Request:
        """The request with paths of this node."""
        placed, digests = [], []
        for media in request.media or ():
            content = contents.get(media["digest"])
            if content is None:
                placed.append(media)
                continue
            path = self._folder / "media" / media["digest"]
            if not self._media[media["digest"]]:
                write_bytes(path, content, MAKE_ROOM)
            self._media[media["digest"]] += 1
            digests.append(media["digest"])
            placed.append({**media, "path": str(path)})
        if digests:
            self._media_of[request.request_id] = digests
            request = replace(request, media=placed)
        return request

    def _drop_media(self, request_id: str) -> None:
        for digest in self._media_of.pop(request_id, ()):
            self._media[digest] -= 1
            if not self._media[digest]:
                (self._folder / "media" / digest).unlink(missing_ok=True)


def _read_media(requests: Sequence[Request]) -> dict[str, bytes]:
    """The files of requests, by digest. One that has changed is left out: the engine's error row names its path."""
    contents: dict[str, bytes] = {}
    for request in requests:
        for media in request.media or ():
            if is_synthetic(media) or media["digest"] in contents:
                continue
            with contextlib.suppress(OSError):
                content = Path(media["path"]).read_bytes()
                if digest_bytes(content) == media["digest"]:
                    contents[media["digest"]] = content
    return contents


def _has_files(order: WorkOrder) -> bool:
    return order.spec.engine.kind.has_model and not order.spec.engine.is_remote


def _list_nodes() -> list[dict[str, float]]:
    """Resources of each node that lives."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _prefer_node_with_gpu() -> Any:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU")]
    return NodeAffinitySchedulingStrategy(nodes[0]["NodeID"], soft=True)
