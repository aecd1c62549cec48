"""An engine with a `vllm serve` of our own: started, asked, killed, recovered and gone afterwards."""

import json
import math
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from engine_kit import ARGS, ONE_CORE, ROOT, Control, Kept, by_id, check_same, parts_of, wait_until_gone, words_of
from run_kit import plain_request

from assayline.clock import RunClock
from assayline.engines.client import StreamingEngine
from assayline.engines.devices.watch import DeviceMemory
from assayline.engines.process import engine_environment
from assayline.engines.recovery.engine import AdaptiveEngine
from assayline.engines.recovery.policy import RecoveryPolicy, Sizes
from assayline.errors import EngineDiedError
from assayline.records import EngineEvent
from assayline.run.begin import begin_evaluation
from assayline.run.drive import Listener, drive_worker
from assayline.settings import Settings
from assayline.spec.engine import ServerSpec
from assayline.spec.file import load_spec
from assayline.store.database import connect, read_rows

pytestmark = pytest.mark.vllm

KEY = "of a test"


def open_server(model: Path, log_path: Path, control: Control | None = None, **changes: Any) -> StreamingEngine:
    parts = parts_of("server", model, log_path, **{"server": ServerSpec(), "args": ONE_CORE, "window": 8, **changes})
    return StreamingEngine(hooks=(control or Control()).hooks, **parts)


def find_server(host_pid: int) -> psutil.Process:
    [server] = psutil.Process(host_pid).children()
    return server


def find_port(server: psutil.Process) -> int:
    """Where it listens."""
    [port] = {one.laddr.port for one in server.net_connections("tcp") if one.status == psutil.CONN_LISTEN}
    return int(port)


def find_engine(server: psutil.Process) -> psutil.Process:
    """The process in which a server's engine runs."""
    [core] = [child for child in server.children() if "EngineCore" in "".join(words_of(child))]
    return core


@pytest.fixture(scope="module")
def kept(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept[StreamingEngine]]:
    log = tmp_path_factory.mktemp("served") / "server.log"
    with pytest.MonkeyPatch.context() as patch, closing(Kept(lambda: open_server(tiny_model, log))) as kept:
        patch.setenv("VLLM_API_KEY", KEY)
        yield kept


@pytest.fixture
def served(kept: Kept[StreamingEngine]) -> StreamingEngine:
    """One server for all tests that leave it unchanged; a test that kills it leaves its replacement."""
    return kept.engine


def test_greedy_answers_are_those_of_the_engine(served, engine, asker):
    requests = [asker.ask(row["question"], max_tokens=None) for row in asker.rows[:24]]
    requests += [asker.ask(logprobs=2, max_tokens=4), asker.ask(prompt_logprobs=2, max_tokens=4)]
    check_same(served, engine, requests)


def test_every_token_is_stamped_by_our_clock(served, asker):
    [answer] = served.generate([asker.ask(min_tokens=8, max_tokens=8)])
    assert answer.token_at_s is not None and len(answer.token_at_s) == answer.output_tokens == 8
    assert answer.sent_at_s is not None and answer.finished_at_s is not None
    assert answer.token_at_s == sorted(answer.token_at_s)
    assert answer.sent_at_s == answer.arrived_at_s < answer.token_at_s[0]
    assert answer.token_at_s[-1] <= answer.finished_at_s
    assert answer.queued_at_s is None and answer.retries == 0


def test_a_form_of_the_output_is_kept(served, asker):
    [answer] = served.generate([asker.ask(structured_outputs={"choice": ["yes", "no"]})])
    assert answer.text in ("yes", "no")


def test_request_refused_by_the_server_is_one_error_row(served, asker):
    requests = [asker.ask(), asker.send([5] * 400), asker.ask(temperature=-3), asker.ask(detokenize=False)]
    answers = by_id(served.generate(requests))
    kinds = [answers[request.request_id].error_kind for request in requests]
    assert kinds == [None, "rejected_by_server", "rejected_by_server", "sampling_error"]
    assert "256" in str(answers[requests[1].request_id].error_message)


def test_own_server_reports_its_details(served):
    details = served.facts.details
    assert served.facts.max_model_len == 256 and details["max_num_seqs"] == 8
    assert details["device"] == "cpu" and details["vllm_version"] and details["torch_version"]
    assert details["server"] == "vllm serve, started for this run"


def test_own_server_rejects_other_users_of_the_machine(served):
    port = find_port(find_server(served.host_pid))
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=30)


def find_url(served: StreamingEngine) -> str:
    """Of our own server, for those who take it for somebody's."""
    return f"http://127.0.0.1:{find_port(find_server(served.host_pid))}/v1"


def test_chats_are_rendered_by_the_server(served, tiny_model, tmp_path, asker):
    env = {**engine_environment(Settings(), {}, {}), "SERVED_KEY": KEY}
    server = ServerSpec(url=find_url(served), endpoint="chat", api_key_env="SERVED_KEY")
    question = asker.rows[0]["question"]
    message = {"role": "user", "content": question}
    chat = plain_request(
        "chat", prompt_token_ids=[], sampling={"temperature": 0, "max_tokens": None}, messages=[message]
    )
    with closing(open_server(tiny_model, tmp_path / "chat.log", server=server, env=env, args={})) as remote:
        [answer] = remote.generate([chat])
        [same] = served.generate([asker.ask(question, max_tokens=None)])
        assert (answer.text, answer.output_token_ids) == (same.text, same.output_token_ids)
        assert answer.prompt_tokens == same.prompt_tokens
        assert answer.token_at_s is not None and len(answer.token_at_s) == answer.output_tokens


def test_the_served_example_is_measured_at_its_rate(served, settings, monkeypatch):
    """On the server that runs already, as its comment says: by URL, and without arguments of an engine."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("SERVED_KEY", KEY)
    server = {"url": find_url(served), "endpoint": "completions", "api_key_env": "SERVED_KEY"}
    engine = json.dumps({"backend": "server", "server": server})
    short = {"prompts.limit": "30", "load.warmup_s": "1", "load.cooldown_s": "1"}
    spec = load_spec("examples/served.yaml", {"engine": engine, **short})
    evaluation = begin_evaluation(spec, settings)
    counts = evaluation.prepare()
    drive_worker(evaluation, "worker-0", Listener())
    evaluation.finish(counts)
    with connect(settings.database_path, 10, read_only=True) as connection:
        rows = read_rows(connection, "from stg_requests order by due_at_s")
        goodput = read_rows(
            connection, "from metric_value where metric = 'good_share' and detail = 'interactive' and n > 0"
        )
    assert len(rows) == 30 and {row["status"] for row in rows} == {"ok"}
    assert all(row["sent_at_s"] >= row["due_at_s"] and row["ttft_s"] > 0 for row in rows)
    assert {row["phase"] for row in rows} == {"warmup", "measured", "cooldown"}
    assert len(goodput) == 1


@pytest.mark.parametrize("victim", [pytest.param("server", marks=pytest.mark.rare), "engine"])
def test_a_killed_server_is_replaced_and_nothing_is_left(kept, tiny_model, tmp_path, asker, victim):
    generation = kept.engine._order.engine_generation
    opened: list[StreamingEngine] = []
    events = []

    def open_one(sizes: Sizes, changed: dict[str, Any], generation: int) -> StreamingEngine:
        args, log = {**ONE_CORE, **changed}, tmp_path / f"generation-{generation}.log"
        engine = open_server(tiny_model, log, args=args, engine_generation=generation) if opened else kept.take()
        opened.append(engine)
        return engine

    def record(row: EngineEvent) -> None:
        events.append((row.engine_generation, row.event, row.details))

    policy = RecoveryPolicy(Sizes(window_requests=8))
    adaptive = AdaptiveEngine(
        open_one, policy, record, DeviceMemory(()), clock=RunClock.start(), first_generation=generation
    )
    requests = [asker.ask(f"What is {i} + {i}?", min_tokens=100, max_tokens=100) for i in range(40)]
    with ExitStack() as at_error:
        at_error.callback(adaptive.close)
        answers = []
        for answer in adaptive.generate(requests):
            answers.append(answer)
            if len(answers) == 5:
                server = find_server(opened[0].host_pid)
                doomed = server if victim == "server" else find_engine(server)
                doomed.kill()
        found = by_id(answers)
        assert set(found) == {request.request_id for request in requests}
        assert all(answer.error_kind is None and answer.output_tokens == 100 for answer in answers)
        assert {answer.engine_generation for answer in answers} == {generation, generation + 1}
        assert [event for _, event, _ in events].count("failed") == 1
        kind = next(details for _, event, details in events if event == "failed")["kind"]
        assert kind == "killed" or victim == "engine"  # whose exit code vLLM does not always tell
        dead = opened[0].host_pid
        wait_until_gone(dead)
        at_error.pop_all()
    kept.keep(opened[1])


STREAMS = 256


def test_no_request_is_lost_when_a_servers_engine_runs_out_of_memory(tiny_model, tmp_path, asker):
    """With that many streams in flight vLLM's server logs a lot, and does not answer health checks meanwhile."""
    args = {
        **ONE_CORE, "max_num_seqs": STREAMS, "worker_extension_cls": "tests.host_kit.OutOfMemoryOnce",
        "kv_cache_memory_bytes": 2**28,
    }  # fmt: skip
    once = tmp_path / "once"
    env = engine_environment(Settings(), {"OMP_NUM_THREADS": "1"}, {"ASSAYLINE_FAILED_ONCE": str(once)})
    events: list[tuple[int, str, Any]] = []

    def open_one(sizes: Sizes, changed: dict[str, Any], generation: int) -> StreamingEngine:
        return open_server(
            tiny_model, tmp_path / f"generation-{generation}.log", args={**args, **changed}, env=env,
            window=sizes.window_requests, engine_generation=generation,
        )  # fmt: skip

    def record(row: EngineEvent) -> None:
        events.append((row.engine_generation, row.event, row.details))

    policy = RecoveryPolicy(Sizes(window_requests=STREAMS))
    requests = [asker.ask(f"What is {i} + {i}?", min_tokens=32, max_tokens=32) for i in range(STREAMS + 100)]
    with closing(AdaptiveEngine(open_one, policy, record, DeviceMemory(()), clock=RunClock.start())) as adaptive:
        answers = by_id(adaptive.generate(requests))
    assert once.exists() and set(answers) == {request.request_id for request in requests}
    assert {answer.error_kind for answer in answers.values()} == {None}
    [failed] = [details for _, event, details in events if event == "failed"]
    assert failed["kind"] == "device_oom" and "CUDA out of memory" in failed["summary"]
    first, second = [details for _, event, details in events if event == "opened"]
    assert second["max_num_seqs"] == min(first["max_num_seqs"], failed["in_flight_requests"]) // 2
    assert (tmp_path / "generation-0.log").stat().st_size < 2**18, "one traceback, not one for every stream"


def test_nothing_is_left_of_a_server_that_is_closed(kept):
    engine = kept.take()
    with closing(engine):
        assert find_engine(find_server(engine.host_pid)).is_running()
    wait_until_gone(engine.host_pid)
    assert "vLLM" in engine._setup.log_path.read_text()


REFUSING = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--max-num-seqs", type=int)
parser.parse_known_args()
"""


def test_a_server_that_ends_while_it_starts_ends_the_start_and_its_words_are_kept(tiny_model, tmp_path):
    """A server that only looks at its arguments; what vLLM's own says of these is in test_vllm_itself.py."""
    package = tmp_path / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    (package / "api_server.py").write_text(REFUSING)
    for folder in (package, *package.parents[:2]):
        (folder / "__init__.py").touch()
    env = engine_environment(Settings(), {}, {"PYTHONPATH": str(tmp_path)})
    with pytest.raises(EngineDiedError) as raised:
        open_server(tiny_model, tmp_path / "bad.log", env=env, args={**ARGS, "max_num_seqs": "many"})
    assert "many" in raised.value.death.log


@pytest.mark.rare
def test_an_own_server_fills_the_seats_of_all_replicas(tiny_model, tmp_path, asker):
    """vLLM chooses their number, and more requests run at once than one replica has seats."""
    args = {name: value for name, value in ONE_CORE.items() if name != "max_num_seqs"}
    control = Control()
    args |= {"data_parallel_size": 2, "kv_cache_memory_bytes": 2**28}
    with closing(open_server(tiny_model, tmp_path / "server.log", control, args=args, window=None)) as engine:
        seats, window = engine.facts.details["max_num_seqs"], engine.facts.window_requests
        assert seats and seats > 64 and window == math.ceil(1.25 * 2 * seats)
        list(engine.generate(asker.ask(max_tokens=150, ignore_eos=True) for _ in range(window)))
    assert max(sample.running_requests or 0 for sample in control.samples) > seats
