"""Runs on a Ray cluster of several nodes on loopback, of which nodes, actors and the flow are killed in the middle."""

import os
import re
import shutil
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

import flow_kit
import psutil
import pytest
from run_kit import PATIENCE_S, ROOT, Work, begin_and_vanish, request_of, rows_of, write_shards
from test_front_ends import CHANGES, read_database

from assayline import evaluate
from assayline.digests import digest_bytes
from assayline.errors import AssaylineError, Death, DeviceError, EngineDiedError, ModelError, SpecError
from assayline.model import identify_model
from assayline.records import Media
from assayline.run import drive, ray_cluster
from assayline.settings import Settings, load_settings
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import load_spec, parse_spec
from assayline.store.parts import write_part

pytestmark = [pytest.mark.prefect, pytest.mark.ray]

ray = pytest.importorskip("ray")
from fault_kit import Nodes, NodeWorker  # noqa: E402


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    folder = tmp_path_factory.mktemp("nodes")
    nodes = Nodes(folder, folder / "cluster.log")
    try:
        yield nodes
    finally:
        nodes.close()


@pytest.fixture
def nodes(cluster: Nodes) -> Nodes:
    cluster.keep_two()
    return cluster


class RayWork(Work):
    """The work of a run whose workers are actors."""

    joined: ray_cluster.RayCluster
    model: tuple[str, str] | None = None

    def __init__(self, *given: Any, **changes: Any) -> None:
        super().__init__(*given, **changes)
        self.threads: list[threading.Thread] = []

    def order(self, worker: str) -> Any:
        order = super().order(worker)
        if self.model is not None:
            order = replace(order, open=replace(order.open, model=self.model[0], model_id=self.model[1]))
        return order

    def drive(self, worker: str = "worker-0", launch: Any = None) -> Any:
        return super().drive(worker, self.joined.launch)

    def start(self, *given: Any, **how: Any) -> threading.Thread:
        self.threads.append(super().start(*given, **how))
        return self.threads[-1]

    def end(self) -> None:
        """End the workers of a test that failed: later they would join a cluster of their own."""
        self.dispatcher.stop()
        for thread in self.threads:
            thread.join(PATIENCE_S)

    def start_two(self) -> list[threading.Thread]:
        self.dispatcher.workers = 2
        return [self.start(f"worker-{number}", self.joined.launch) for number in range(2)]


@pytest.fixture
def join(nodes: Nodes, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Make the work of a run from the shards in tmp_path, on the cluster, with engines that the test can crash."""
    monkeypatch.setattr(ray_cluster, "_NodeWorker", NodeWorker)
    monkeypatch.setattr(drive, "REPLACEMENT_PAUSES_S", (0.1, 0.2, 0.3))

    @contextmanager
    def make(**changes: Any) -> Iterator[RayWork]:
        quick = settings.model_copy(update=changes.pop("settings", {}))
        work = RayWork(tmp_path, quick, runner="ray", ray_address=nodes.address, **changes)
        with ray_cluster.open_cluster(work.spec, quick) as joined:
            assert joined is not None
            work.joined = joined
            try:
                yield work
            finally:
                work.end()

    yield make


def count_answers(folder: Path) -> Counter[str]:
    return Counter(row["request_id"] for row in rows_of(folder, "completions"))


def finish(work: RayWork, threads: list[threading.Thread], ids: list[str]) -> None:
    """The workers end by themselves, and each request has one row."""
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), work.notes
    assert count_answers(work.run_dir) == Counter(ids), work.notes


def wait_for_answers(work: RayWork, count: int) -> None:
    flow_kit.wait_for(lambda: work.dispatcher.snapshot().answered >= count, f"{count} answers", work.notes)


def wait_for_engines(work: RayWork, count: int) -> None:
    flow_kit.wait_for(
        lambda: sum(event.event == "opened" for event in work.events) >= count, f"{count} engines", work.notes
    )


def test_ray_actor_that_is_killed_is_replaced_and_costs_no_request(nodes, tmp_path, join):
    ids = write_shards(tmp_path, shards=8, per_shard=10, max_tokens=20)
    with join(engine={"backend": "fake", "max_concurrency": 8}, is_closed=False) as work:
        threads = work.start_two()
        wait_for_engines(work, 2)
        wait_for_answers(work, 20)
        dead = next(iter(nodes.actors()))
        os.kill(dead, signal.SIGKILL)
        wait_for_engines(work, 3)
        work.dispatcher.close()
        finish(work, threads, ids)
    assert any("and requeued its requests" in note for note in work.notes)
    opened = [event.engine_generation for event in work.events if event.event == "opened"]
    assert sorted(opened) == [0, 0, 1], "the replacement's engine has a number of its own"


def test_ray_actor_that_is_stopped_longer_than_the_stall_timeout_is_killed(nodes, tmp_path, join):
    ids = write_shards(tmp_path, shards=12, per_shard=10, max_tokens=20)
    with join(engine={"backend": "fake", "max_concurrency": 8}, settings={"engine_stall_timeout_s": 2.0}) as work:
        threads = work.start_two()
        wait_for_engines(work, 2)
        stopped = next(iter(nodes.actors()))
        os.kill(stopped, signal.SIGSTOP)
        finish(work, threads, ids)
        flow_kit.wait_for(lambda: not psutil.pid_exists(stopped), "the stopped actor is gone")
    assert any("did not answer for" in note for note in work.notes)


def test_ray_actor_that_is_stopped_in_its_start_is_killed_and_replaced(nodes, tmp_path, join, monkeypatch):
    ids = write_shards(tmp_path, shards=4, per_shard=10, max_tokens=20)
    stops = tmp_path / "stops"
    stops.touch()
    engine = {"backend": "fake", "max_concurrency": 8, "env": {"STOPS": str(stops)}}
    with join(engine=engine, is_closed=False) as work:
        threads = work.start_two()
        [stopped] = flow_kit.wait_for(
            lambda: [pid for pid in nodes.actors() if psutil.Process(pid).status() == psutil.STATUS_STOPPED]
        )
        wait_for_engines(work, 1)
        limit_s = work.settings.engine_start_timeout_s
        late = SimpleNamespace(monotonic=lambda: time.monotonic() + limit_s)
        monkeypatch.setattr(ray_cluster, "time", late)
        wait_for_engines(work, 2)
        flow_kit.wait_for(lambda: not psutil.pid_exists(stopped), "the stopped actor is gone")
        work.dispatcher.close()
        finish(work, threads, ids)
    assert any("did not answer for" in note for note in work.notes)


def test_ray_request_that_kills_its_actor_is_asked_alone_and_becomes_an_error_row(nodes, tmp_path, join):
    ids = write_shards(tmp_path, shards=4, per_shard=10, max_tokens=20)
    killer = replace(request_of(999), rendered="kill", sampling={"max_tokens": 20})
    write_part(tmp_path, "requests", "shard-000099", [killer])
    with join(engine={"backend": "fake", "max_concurrency": 4}) as work:
        finish(work, work.start_two(), [*ids, killer.request_id])
    rows = {row["request_id"]: row for row in rows_of(tmp_path, "completions")}
    assert [id_ for id_, row in rows.items() if row["error_kind"]] == [killer.request_id]
    assert rows[killer.request_id]["error_kind"] == "killed_worker"
    assert "at the loss of 3 workers" in rows[killer.request_id]["error_message"]


def test_ray_node_that_joins_gives_a_waiting_worker_its_place(nodes, tmp_path, join):
    """Three workers on two nodes with a core each: the third waits without being lost, and ends if nothing is left."""
    ids = write_shards(tmp_path, shards=6, per_shard=10, max_tokens=20)
    late = [request_of(number, max_tokens=20) for number in range(len(ids), len(ids) + 60)]
    settings = {"engine_stall_timeout_s": 1.0}
    with join(engine={"backend": "fake", "max_concurrency": 4}, settings=settings, is_closed=False) as work:
        threads = work.start_two()
        flow_kit.wait_for(lambda: len(set(nodes.actors().values())) == 2, "an actor on each node")
        threads += [work.start(f"worker-{number}", work.joined.launch) for number in (2, 3)]
        wait_for_answers(work, len(ids))
        added = nodes.add()
        flow_kit.wait_for(lambda: added in nodes.actors().values(), "an actor on the new node")
        wait_for_engines(work, 3)
        work.add(write_part(tmp_path, "requests", "shard-late", late))
        work.dispatcher.close()
        finish(work, threads, [*ids, *(request.request_id for request in late)])
    workers = {row["worker"] for row in rows_of(tmp_path, "completions")}
    assert len(workers) == 3 and not any("lost" in note for note in work.notes)


def test_ray_worker_that_waits_for_its_place_ends_when_the_run_is_stopped(nodes, tmp_path, join):
    write_shards(tmp_path, shards=1, per_shard=10, max_tokens=10**8)
    with join() as work:
        threads = [work.start(f"worker-{number}", work.joined.launch) for number in range(3)]
        flow_kit.wait_for(lambda: len(nodes.actors()) == 2, "two have their place")
        work.dispatcher.stop()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        flow_kit.wait_for(lambda: not nodes.actors(), "no actor is left")


def test_ray_node_gets_media_that_it_lacks(nodes, tmp_path, join, monkeypatch):
    """Paths below /proc/self/cwd mean something else on each node, as on machines without a shared folder."""
    monkeypatch.chdir(tmp_path)
    seen = nodes.folder / nodes.alive[0] / "everywhere"
    for path in (Path("everywhere"), seen, nodes.folder / nodes.alive[1] / "everywhere"):
        path.write_text("seen")

    def media(name: str, content: str) -> Media:
        Path(name).write_text(content)
        return Media(kind="image", path=f"/proc/self/cwd/{name}", digest=digest_bytes(content.encode()))

    requests = [
        replace(
            request_of(number), media=[media(f"picture-{number}", f"content {number}"), media("everywhere", "seen")]
        )
        for number in range(8)
    ]
    write_part(tmp_path, "requests", "shard-000000", requests)
    with join(engine={"backend": "fake", "max_concurrency": 2}) as work:
        work.drive()
    texts = {row["request_id"]: row["text"] for row in rows_of(tmp_path, "completions")}
    assert len(texts) == 8
    for number, request in enumerate(requests):
        own, shared = texts[request.request_id].split("|")
        path, _, content = own.partition("=")
        assert content == f"content {number}" and not path.startswith("/proc")
        assert shared.endswith("=seen")
        assert not Path(path).exists(), "a file that came with a request goes with it"


def test_ray_node_gets_media_that_it_has_with_another_content(nodes, tmp_path, join, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (Path("same"), *(nodes.folder / address / "same" for address in nodes.alive)):
        path.write_text("ours" if path == Path("same") else "mine")
    media = Media(kind="image", path="/proc/self/cwd/same", digest=digest_bytes(b"ours"))
    write_part(tmp_path, "requests", "shard-000000", [replace(request_of(0), media=[media])])
    with join(engine={"backend": "fake"}) as work:
        work.drive()
    [row] = rows_of(tmp_path, "completions")
    assert row["text"].endswith("=ours") and not row["text"].startswith("/proc")


@pytest.fixture
def model(modest_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """A model of the flow's machine, by a path that is another folder on each node."""
    shutil.copytree(modest_model, tmp_path / "model")
    (tmp_path / "model" / "modeling.py").write_text("# code")
    monkeypatch.chdir(tmp_path)
    return "/proc/self/cwd/model", identify_model("/proc/self/cwd/model").model_id


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (None, r"lacks the model\. Model path .* is not a folder\. hint: copy"),
        ("# other code", r"has another model in /proc/self/cwd/model: sha256:.*hint: copy"),
    ],
)
def test_ray_node_without_the_model_or_with_other_code_in_it_is_named(nodes, tmp_path, join, model, code, reason):
    for address in nodes.alive:
        there = nodes.folder / address / "model"
        shutil.rmtree(there, ignore_errors=True)
        if code:
            shutil.copytree(tmp_path / "model", there)
            (there / "modeling.py").write_text(code)
    write_shards(tmp_path, shards=1, per_shard=1)
    with join(engine={"backend": "offline", "device": "cpu"}) as work:
        work.model = model
        with pytest.raises(ModelError, match=rf"Node 127\.0\.0\.\d+ of the Ray cluster {reason}"):
            work.drive()


def test_ray_node_with_another_assayline_answers_nothing(nodes, tmp_path, join, monkeypatch):
    """The other nodes answer all requests. Code counts, not the version's number."""
    other = nodes.folder / "other"
    shutil.copytree(ROOT / "assayline", other / "assayline")
    with (other / "assayline" / "engines" / "fake.py").open("a") as file:
        file.write("\nCHANGED = True\n")
    address = nodes.add(path=str(other))
    monkeypatch.chdir(tmp_path)  # Ray imports from the flow's working folder first
    ids = write_shards(tmp_path, shards=6, per_shard=10, max_tokens=20)
    with join(engine={"backend": "fake", "max_concurrency": 4}) as work:
        work.dispatcher.workers = 3
        finish(work, [work.start(f"worker-{n}", work.joined.launch) for n in range(3)], ids)
    [refused] = [note for note in work.notes if "another assayline" in note]
    assert f"Node {address} of the Ray cluster has another assayline in {other}/assayline" in refused
    opened = [event.worker for event in work.events if event.event == "opened"]
    assert opened and not any(worker in refused.split()[0] for worker in opened)


def test_ray_worker_passes_on_why_its_engine_died(nodes, tmp_path, join):
    """The error is pickled on the node, evidence included."""
    write_shards(tmp_path, shards=1, per_shard=1)
    death = Death("run", exception="AssertionError")
    dying = join(engine={"backend": "fake", "env": {"DIES": "1"}})
    with dying as work, pytest.raises(EngineDiedError, match="died on its node") as caught:
        work.drive()
    assert caught.value.death == death


def ray_spec(address: str | None, **changes: Any) -> EvalSpec:
    prompts = {"source": {"kind": "inline", "rows": [{"prompt": "1 + 1"}]}}
    return parse_spec({"model": "m", "prompts": prompts, "runner": "ray", "ray_address": address, **changes})


def refuse(spec: EvalSpec, settings: Settings) -> str:
    with pytest.raises((SpecError, DeviceError)) as refused, ray_cluster.open_cluster(spec, settings):
        pass
    assert not ray.is_initialized()
    return str(refused.value)


def has_room(joined: ray_cluster.RayCluster, workers: int) -> bool:
    return joined._count_room() == workers


def test_ray_actor_has_the_gpus_of_its_engine_and_a_cluster_with_too_few_is_refused(
    nodes, tmp_path, join, modest_model, settings
):
    """GPUs that Ray counts and that are not there: the engine is a fake one."""
    places = [nodes.add(gpus=2)]
    spec = ray_spec(nodes.address, workers=2, engine={"device": "cuda", "args": {"tensor_parallel_size": 2}})
    assert refuse(spec, settings) == (
        "The Ray cluster has 2 GPUs on 4 nodes: room for 1 engines with 2 GPUs each, but the spec needs 2. hint: "
        "lower `workers`, add nodes, or wait for nodes with ASSAYLINE_DEVICE_WAIT_S."
    )
    places.append(nodes.add(gpus=2))
    write_shards(tmp_path, shards=1, per_shard=4)
    for gpus, workers, note in ((2, 2, "GPUs [0, 1], executor None"), (4, 1, "GPUs [], executor ray")):
        args = {"tensor_parallel_size": gpus}
        with join(engine={"backend": "async", "device": "cuda", "args": args}, workers="auto") as work:
            flow_kit.wait_for(partial(has_room, work.joined, workers), "Ray has noticed which nodes live")
            assert work.joined.count_workers() == workers
            work.model = str(modest_model), identify_model(str(modest_model)).model_id
            work.drive()
        assert note in work.notes
        assert any(f"node {place} " in note for note in work.notes for place in places)


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "auto", "ray://127.0.0.1:1", "no-such-host.invalid:6379", "127.0.0.1:{}"]
)
def test_ray_without_a_cluster_at_the_address_is_refused(settings, address, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:  # the system takes its port and 65536 for its port
        address = address.format(server.getsockname()[1] + 2**16)
        message = refuse(ray_spec(address), settings)
    assert message.startswith(f"Cannot join a Ray cluster at {address}: ")
    assert message.endswith(
        "hint: pass the address printed by `ray start --head`, as host:port, and run on a node of that cluster."
    )


@pytest.mark.parametrize("version", [("9.9.9", None), (None, "2.7.18")])
def test_ray_cluster_of_another_version_is_refused(nodes, settings, monkeypatch, version):
    """Ray's own check, with its own message: RuntimeError of ray._private.utils.check_version_info."""
    from ray._private import utils

    own = utils.compute_version_info()
    monkeypatch.setattr(utils, "compute_version_info", lambda: (version[0] or own[0], version[1] or own[1]))
    message = refuse(ray_spec(nodes.address), settings)
    assert "Version mismatch: The cluster was started with: Ray: " in message
    assert message.endswith("hint: install the same versions of Ray and Python on this machine and on every node.")


def test_ray_cluster_that_asks_for_a_token_is_refused_with_a_hint(settings, nodes, monkeypatch):
    """The message is that of Ray 2.60's client at a head with RAY_AUTH_MODE=token."""
    error = ray.exceptions.AuthenticationError(
        "RPC error: InvalidAuthToken: Authentication token is missing or incorrect"
    )

    def refuse_to_join(**_: Any) -> None:
        raise error

    monkeypatch.setattr(ray, "init", refuse_to_join)
    message = refuse(ray_spec(nodes.address), settings)
    assert message.endswith(
        "hint: set RAY_AUTH_MODE=token, and set the head node's token on this machine and on every node."
    )


def test_ray_that_is_not_installed_is_named(settings, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    spec = ray_spec("127.0.0.1:1")
    hint = r"hint: pip install 'assayline\[ray\]'"
    with pytest.raises(SpecError, match=hint), ray_cluster.open_cluster(spec, settings):
        pass


@pytest.fixture
def env(alone_env: dict[str, str]) -> dict[str, str]:
    """A flow's environment, with a cluster that no spec names."""
    return {**alone_env, "RAY_ADDRESS": "127.0.0.1:1", "PYTHONPATH": str(ROOT)}


def start_flow(folder: Path, spec: dict[str, Any], env: dict[str, str]) -> Any:
    return flow_kit.started(
        flow_kit.evaluate_command(flow_kit.write_spec(folder / "spec.yaml", spec)), env, folder / "log"
    )


def check_complete(data_dir: Path, requests: int, attempts: int) -> None:
    counts = flow_kit.query(data_dir, "select count(*), count(distinct request_id), count(text) from completions")
    assert counts == [(requests, requests, requests)]
    summary = "select attempts, is_sound from main.run join request_integrity using (run_id)"
    assert flow_kit.query(data_dir, summary) == [(attempts, True)]


@pytest.mark.rare
def test_ray_flow_outlives_a_node_and_uses_one_that_joins(nodes, slow_spec, env, data_dir, tmp_path):
    """Prompts come through a pipe: some when there are two nodes, the others when all workers are there."""
    rows = Path(slow_spec["prompts"]["source"]["path"]).read_text().splitlines(keepends=True)
    all_are_there = threading.Event()

    def feed(source: TextIO) -> None:
        source.writelines(rows[:20])
        all_are_there.wait(PATIENCE_S)
        source.writelines(rows[20:])

    flow_kit.feed_pipe(tmp_path / "pipe.jsonl", feed)
    slow_spec["prompts"]["source"]["path"] = str(tmp_path / "pipe.jsonl")
    slow_spec |= {"workers": "auto", "runner": "ray", "ray_address": nodes.address}
    with start_flow(tmp_path, slow_spec, env) as run:
        flow_kit.wait_for(lambda: flow_kit.count_opened(data_dir) == 2, "both engines are open")
        nodes.kill(next(iter(nodes.actors().values())))
        for _ in range(2):
            nodes.add()
        flow_kit.wait_for(lambda: flow_kit.count_opened(data_dir) >= 4, "a replacement, and a third worker")
        all_are_there.set()
        assert run.wait(PATIENCE_S) == 0, (tmp_path / "log").read_text()
    check_complete(data_dir, flow_kit.SLOW_ROWS, attempts=1)
    opened = "select count(distinct worker) from engine_events where event = 'opened'"
    assert flow_kit.query(data_dir, opened)[0] >= 3, "the node that joined has a worker, whatever was left for it"


@pytest.mark.parametrize(
    "change",
    ["judged", *(pytest.param(one, marks=pytest.mark.rare) for one in CHANGES if one not in ("judged", "killed"))],
)
def test_ray_writes_the_rows_of_a_run_in_threads(change, nodes, fake_spec, tmp_path, monkeypatch, charts):
    """Two actors on two nodes against workers of this process; what a front end may change is in test_front_ends.py."""
    monkeypatch.setenv("PREFECT_API_URL", "")
    CHANGES[change](fake_spec, tmp_path)
    found = {}
    for runner, place in (("local", {}), ("ray", {"runner": "ray", "ray_address": nodes.address})):
        spec = flow_kit.write_spec(tmp_path / f"{runner}.yaml", {**fake_spec, **place})
        monkeypatch.setenv("ASSAYLINE_DATA_DIR", str(tmp_path / runner))
        if change == "resumed":
            begin_and_vanish(load_spec(spec), load_settings(), 3)
        with suppress(AssaylineError):
            evaluate(spec)
        found[runner] = read_database(tmp_path / runner)
        runs = found[runner]["runs"]
        found[runner]["runs"] = [re.sub(r'"(runner|ray_address)": ("[^"]*"|null)', "", run) for run in runs]
    assert found["ray"] == found["local"]


@pytest.mark.rare
def test_ray_actors_end_with_a_killed_flow(nodes, slow_spec, env, data_dir, tmp_path):
    slow_spec |= {"workers": 2, "runner": "ray", "ray_address": nodes.address}
    slow_spec["sampling"]["max_tokens"] = 5_000
    with start_flow(tmp_path, slow_spec, env) as run:
        flow_kit.wait_for(lambda: flow_kit.count_opened(data_dir) == 2, "both engines are open")
        run.kill()
        flow_kit.wait_for(lambda: not nodes.actors(), "no actor is left")
    assert flow_kit.count_in_parts(data_dir) < flow_kit.SLOW_ROWS


def test_ray_flow_that_is_terminated_stores_what_there_is(nodes, slow_spec, env, data_dir, tmp_path):
    """Ray puts a SIGTERM handler of its own into the process that joins a cluster; the flow's is back afterwards."""
    slow_spec |= {"workers": 2, "runner": "ray", "ray_address": nodes.address}
    slow_spec["sampling"]["max_tokens"] = 5_000
    with start_flow(tmp_path, slow_spec, env) as run:
        flow_kit.wait_for(lambda: flow_kit.count_in_parts(data_dir) >= 4, "answers are stored")
        run.terminate()
        run.wait(PATIENCE_S)
        flow_kit.wait_for(lambda: not nodes.actors(), "no actor is left")
    answered = flow_kit.count_in_parts(data_dir)
    assert flow_kit.query(data_dir, "select count(*) from completions") == [answered]
    assert flow_kit.query(data_dir, "select state from runs") == ["cancelled"]


@pytest.mark.rare
def test_ray_flow_ends_with_a_hint_when_the_head_dies(slow_spec, env, data_dir, tmp_path):
    own = Nodes(tmp_path, tmp_path / "cluster.log")
    try:
        slow_spec |= {"workers": 2, "runner": "ray", "ray_address": own.address}
        slow_spec["sampling"]["max_tokens"] = 30_000
        with start_flow(tmp_path, slow_spec, env) as run:
            flow_kit.wait_for(lambda: flow_kit.count_in_parts(data_dir) >= 2, "answers are stored")
            own.kill_head()
            code = run.wait(PATIENCE_S)
        said = (tmp_path / "log").read_text()
        assert code == 5 and f"error: The head of the Ray cluster at {own.address} has not answered for" in said
    finally:
        own.close()
    assert "hint: start the cluster again, then run the same command" in said
    assert flow_kit.query(data_dir, "select state from runs") == ["failed"]
    assert "hint: rerun the command to resume it" in said


def hosts_on(nodes: Nodes) -> list[psutil.Process]:
    """Processes of the nodes that hold an engine."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            place = process.environ().get("ASSAYLINE_LOCK_DIR", "")
            if flow_kit.is_host(process) and place.startswith(str(nodes.folder)) and process.status() != "zombie":
                found.append(process)
    return found


@pytest.mark.rare
@pytest.mark.vllm
def test_ray_with_vllm_on_two_nodes_outlives_a_node_and_the_flow(nodes, make_spec, env, data_dir, tmp_path):
    """Each prompt is asked 240 times, by workers that are killed, and gets equal answers."""
    spec = make_spec(prompts={"limit": 50, "repeats": 240}).model_dump(mode="json")
    spec["engine"]["args"]["max_num_seqs"] = 1
    spec |= {"runner": "ray", "ray_address": nodes.address, "workers": 2}
    spec["engine"]["env"] = flow_kit.ONE_THREAD
    with start_flow(tmp_path, spec, env) as run:
        flow_kit.wait_for(lambda: flow_kit.count_opened(data_dir) == 2, "both engines are open")
        [dead, address] = next(iter(nodes.actors().items()))
        hosts = [host for host in hosts_on(nodes) if host.ppid() == dead]
        assert len(hosts) == 1
        nodes.kill(address)
        assert not psutil.wait_procs(hosts, timeout=PATIENCE_S)[1], "the node was killed"
        nodes.add()
        flow_kit.wait_for(lambda: flow_kit.count_opened(data_dir) == 3, "the replacement's engine is open")
        hosts = hosts_on(nodes)
        run.kill()
        assert not psutil.wait_procs(hosts, timeout=PATIENCE_S)[1], "the flow was killed"
    assert 0 < flow_kit.count_in_parts(data_dir) < 12_000
    with start_flow(tmp_path, spec, env) as run:
        assert run.wait(PATIENCE_S) == 0, (tmp_path / "log").read_text()
    check_complete(data_dir, 12_000, attempts=2)
    texts = "select count(distinct text) from completions join requests using (run_id, request_id) group by prompt_id"
    assert set(flow_kit.query(data_dir, texts)) == {1}
