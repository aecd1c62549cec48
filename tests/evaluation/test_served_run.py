"""Whole runs against a server, without Prefect and without a model: chats that it renders, prompts that we render."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from run_kit import complete, query, vanish
from server_kit import FakeServer

from assayline.errors import ModelError, PromptsChangedError
from assayline.evaluation.begin import begin_evaluation, plan_run
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import parse_spec

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


def test_token_ids_need_a_tokenizer(server, settings):
    spec = chat_spec(server.url, engine={"server": {"url": server.url}})
    with pytest.raises(ModelError, match=r"engine\.server\.model .*endpoint to chat"):
        plan_run(spec)


SERVER = {"url": "http://127.0.0.1:9/v1", "endpoint": "chat"}


def test_a_folder_is_identified_by_its_files_wherever_it_answers(settings, tiny_model):
    manifest, _ = plan_run(chat_spec(SERVER["url"], model=str(tiny_model)))
    assert manifest.model_id.startswith("sha256:")
