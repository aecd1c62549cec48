"""Whole runs against a server, without Prefect and without a model: chats that it renders, prompts that we render."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from run_kit import complete, query, vanish, work
from server_kit import FakeServer, Script

from assayline.comparison.board import find_cells
from assayline.errors import ModelError, PromptsChangedError, SpecError
from assayline.load.arrivals import list_offsets
from assayline.report.history_rows import list_changes
from assayline.run import worker
from assayline.run.begin import begin_evaluation, plan_run
from assayline.run.worker import count_senders
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import parse_spec
from assayline.store.database import connect
from assayline.store.thread import DatabaseThread

pytestmark = pytest.mark.slow


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer().running() as running:
        yield running


def chat_spec(url: str, **changes: Any) -> EvalSpec:
    data: dict[str, Any] = {
        "name": "served",
        "model": "org/fake-model",
        "prompts": {"source": {"kind": "inline", "rows": [{"prompt": f"Count {i}", "target": "One two three four"}
                                                          for i in range(6)]}},
        "chat": {"system": "Count."},
        "sampling": {"temperature": 0},
        "engine": {"backend": "server", "server": {"url": url, "endpoint": "chat"}},
    }  # fmt: skip
    for key, value in changes.items():
        data[key] = {**data.get(key, {}), **value} if isinstance(value, dict) else value
    return parse_spec(data)


def test_chats_are_sent_as_messages_and_stored_as_such(server, settings):
    result = complete(chat_spec(server.url, chat={"system": "Count.", "kwargs": {"fast": True}}), settings)

    assert result.answered_requests == 6
    assert {row["metric"]: row["value"] for row in result.metrics}["accuracy (exact_match)"] == 1.0
    rows = query(settings, "select messages_json, prompt_token_ids, rendered from requests order by messages_json")
    assert rows == [
        (json.dumps([{"content": "Count.", "role": "system"}, {"content": f"Count {i}", "role": "user"}]), None, None)
        for i in range(6)
    ]
    warm_up, *asked = server.received
    assert warm_up.body["max_tokens"] == 4 and len(asked) == 6
    assert all("max_tokens" not in one.body and one.body["chat_template_kwargs"] == {"fast": True} for one in asked)
    assert {tuple(message["role"] for message in one.body["messages"]) for one in asked} == {("system", "user")}
    assert query(settings, "select model_id, tokenizer_id from runs") == [("served:org/fake-model", "served")]
    assert query(settings, "select distinct retries, prompt_tokens, output_tokens from completions") == [(0, 3, 4)]


def test_prompts_that_we_render_are_sent_as_token_ids(server, settings, make_spec):
    spec = make_spec(engine={"backend": "server", "server": {"url": server.url}, "args": {}}, prompts={"limit": 5})
    assert complete(spec, settings).answered_requests == 5
    sent = {tuple(one.body["prompt"]) for one in server.received}
    stored = {tuple(ids) for (ids,) in query(settings, "select prompt_token_ids from requests")}
    assert stored < sent and len(sent) == len(stored) + 1  # and the warm-up
    [(model_id,)] = query(settings, "select model_id from runs")
    assert model_id.startswith("sha256:")


@pytest.mark.parametrize("arrival", [{"kind": "poisson", "rate_per_s": 40}, {"kind": "concurrency", "requests": 5}])
def test_several_senders_share_a_load_of_one_pattern(server, settings, arrival, monkeypatch):
    """Together they follow the pattern of one, each from a process of its own, and each with seats of its own."""
    monkeypatch.setattr(worker, "count_senders", lambda spec, cores: 3)
    spec = chat_spec(server.url, prompts={"repeats": 10}, load={"arrival": arrival})
    server.default = Script(delay_s=0.1)
    evaluation = begin_evaluation(spec, settings)
    counts = evaluation.prepare()
    work(evaluation)
    logs = sorted(path.stem for path in (evaluation.run_dir / "logs").glob("*.log"))
    assert logs == [f"worker-0-generation-0{number}" for number in ("", "-2", "-3")]
    evaluation.finish(counts)
    rows = query(settings, "select due_at_s, sent_at_s, window_requests, error_kind from completions order by due_at_s")
    assert len(rows) == 60 and {error for *_, error in rows} == {None}
    assert {window for _, _, window, _ in rows} == {arrival.get("requests")}
    if arrival["kind"] == "poisson":
        offsets = itertools.islice(list_offsets(spec.load.arrival), 60)
        assert [due_s - rows[0][0] for due_s, *_ in rows] == pytest.approx(list(offsets))
    else:
        assert server.most_in_flight == 5, "no sender alone has more than two seats"


def test_a_run_against_a_server_is_resumed_and_compares_its_chats(server, settings):
    asked = {"backend": "server", "server": {"url": server.url, "endpoint": "chat"}}
    spec = chat_spec(server.url, shard_requests=2)
    first = begin_evaluation(spec, settings)
    first.prepare()
    vanish(first)
    for part in first.run_dir.glob("parts/requests/*-000002.parquet"):
        part.unlink()
    assert complete(spec, settings).answered_requests == 6
    assert query(settings, "select count(distinct run_id), count(*) from completions") == [(1, 6)]

    spec = chat_spec(server.url, shard_requests=2, engine={**asked, "order": "given"})
    second = begin_evaluation(spec, settings, "never")
    second.prepare()
    vanish(second)
    shard = next(iter(second.run_dir.glob("parts/requests/*-000000.parquet")))
    assert shard.exists()
    shard.with_name("shard-000002.parquet").unlink()
    shard.write_bytes(shard.with_name("shard-000001.parquet").read_bytes())
    with pytest.raises(PromptsChangedError):
        complete(spec, settings, second.run_id)


def _list_models(root: str) -> list[dict[str, Any]]:
    base = {"id": "org/fake-model", "owned_by": "vllm", "max_model_len": 128, "root": root}
    return [base, {**base, "id": "tide", "root": "/adapters/tide", "parent": "org/fake-model"}]


def test_a_run_is_not_resumed_by_another_model_of_that_name(server, settings, make_spec):
    spec = make_spec(engine={"backend": "server", "warmup": False, "server": {"url": server.url}, "args": {}},
                     sampling={"max_tokens": None}, prompts={"limit": 2})  # fmt: skip
    unknown_length = [{"id": "fake-model", "root": "/models/a", "owned_by": "vllm"}]
    for models, version, message in (
        (unknown_length, "0.32.0", "max_tokens"),
        (_list_models("/models/b")[:1], "0.32.0", "is /models/b now, and was /models/a when the run began"),
        (_list_models("/models/a")[:1], "0.33.0", "vLLM is 0.33.0 now, and was 0.32.0 when the run began"),
    ):
        server.models, server.version = models, version
        evaluation = begin_evaluation(spec, settings)
        evaluation.prepare()
        with pytest.raises(SpecError, match=message):
            work(evaluation)
        evaluation.abandon("failed")
    server.version = "0.32.0"
    assert complete(spec, settings).run_id == evaluation.run_id
    assert query(settings, "select count(*), any_value(served_root) from run") == [(1, "/models/a")]


def test_two_models_behind_one_name_are_two_models(server, settings):
    asked = {"backend": "server", "server": {"url": server.url, "endpoint": "chat"}, "warmup": False}
    server.models = _list_models("/models/a")
    complete(chat_spec(server.url, engine=asked), settings)
    with FakeServer().running() as other:
        other.models = _list_models("/models/b")
        other.default = Script(tokens=("no",))
        complete(chat_spec(other.url), settings, "never")
        for one in (server, other):
            one.default = Script(tokens=("tide",))
            adapter = {**asked, "server": {**asked["server"], "url": one.url, "model": "tide"}}
            complete(chat_spec(one.url, name="adapter", engine=adapter), settings, "never")
    board = DatabaseThread(settings).run(lambda connection: find_cells(connection, ["served"]))
    assert sorted((cell["model"], cell["mean"]) for cell in board) == [
        ("org/fake-model @/models/a", 1),
        ("org/fake-model @/models/b", 0),
    ]
    roots = [root for (root,) in query(settings, "select distinct served_root from run where name = 'adapter'")]
    assert sorted(roots) == ["/adapters/tide on /models/a", "/adapters/tide on /models/b"]
    with connect(settings.database_path, 10) as connection:
        changes = {row["condition"]: row for row in list_changes(connection, "served")}
    assert [changes["served files"][side] for side in ("before", "after")] == ["/models/a", "/models/b"]


def test_token_ids_need_a_tokenizer(server, settings):
    spec = chat_spec(server.url, engine={"server": {"url": server.url}})
    with pytest.raises(ModelError, match=r"engine\.server\.model .*endpoint to chat"):
        plan_run(spec, settings)


SERVER = {"url": "http://127.0.0.1:9/v1", "endpoint": "chat"}


def test_a_folder_is_identified_by_its_files_wherever_it_answers(settings, tiny_model):
    manifest = plan_run(chat_spec(SERVER["url"], model=str(tiny_model)), settings).fresh
    assert manifest.model_id.startswith("sha256:")


@pytest.mark.parametrize(
    ("load", "cores", "senders"),
    [
        (None, 64, 1),
        ({"kind": "poisson", "rate_per_s": 400}, 64, 2),
        ({"kind": "constant", "rate_per_s": 2600}, 64, 9),
        ({"kind": "constant", "rate_per_s": 2600}, 8, 6),
        ({"kind": "constant", "rate_per_s": 2600}, 2, 1),
        ({"kind": "concurrency", "requests": 2500}, 64, 3),
    ],
)
def test_senders_are_as_many_as_a_load_needs_and_cores_allow(load, cores, senders):
    spec = chat_spec("http://s/v1", sampling={"max_tokens": 100}, load=load and {"arrival": load})
    assert count_senders(spec, cores) == senders
