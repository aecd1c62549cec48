"""Inputs and answers as people bring them and models write them: one small example of each kind that was misread once.

Answers are forced on real vLLM with the tiny model, by a choice of one. One engine answers them all.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flow_kit
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from run_kit import ENGINE_ARGS, FAKE, complete, query, settings_in
from server_kit import FakeServer, Script

from assayline.comparison.board import find_cells
from assayline.engines.pool import EnginePool
from assayline.model import identify_spec_model
from assayline.report.html import bundle_charts
from assayline.run.prepare import Preparation
from assayline.run.worker import Worker
from assayline.settings import Settings
from assayline.spec.engine import EngineSpec
from assayline.spec.file import parse_spec
from assayline.store.thread import DatabaseThread

pytestmark = pytest.mark.vllm

FORCED = [json.loads(line) for line in (Path(__file__).parent / "forced.jsonl").read_text("utf-8").splitlines()]
SCORERS = [
    {"kind": "choice", "name": "ten letters", "letters": "ABCDEFGHIJ"}, {"kind": "choice", "name": "letters"},
    {"kind": "numeric", "name": "numbers"}, {"kind": "math", "name": "mathematics"},
]  # fmt: skip
FORM = {"backend": "xgrammar", "disable_any_whitespace": True}
QUESTION = {"template": "{{ q }}"}
FREE: dict[str, Any] = {"sampling": None}
"""Columns of rows whose answers are not forced."""


class Desk:
    """Runs of inline rows on one engine; a row with `force` is answered with that text."""

    def __init__(self, model: Path, settings: Settings, pool: EnginePool) -> None:
        self.model, self.settings, self._pool = model, settings, pool

    def spec(self, rows: list[dict[str, Any]], target: str | None = None, **fields: Any) -> Any:
        forced = [{**row, "sampling": _force(row.get("force"))} for row in rows]
        columns = {"id": "id", "target": target, "sampling": "sampling", **fields.pop("columns", {})}
        data: dict[str, Any] = {
            "model": str(self.model),
            "prompts": {"source": {"kind": "inline", "rows": forced}, "columns": columns},
            "sampling": {"temperature": 0, "max_tokens": 80},
            "engine": {"args": {**ENGINE_ARGS, "structured_outputs_config": FORM}},
        }
        for field, value in fields.items():
            data[field] = {**data.get(field, {}), **value} if isinstance(value, dict) else value
        return parse_spec(data)

    def ask(self, spec: Any, columns: str) -> list[Any]:
        """Complete a run, and return columns of its answers, prompts and scores, in the order of rows and scorers."""
        run = complete(spec, self.settings, "never", launch=lambda order: Worker(order, pool=self._pool))
        return query(
            self.settings,
            f"""
            select {columns}
            from answer
            join (select * exclude (source_row, source_id, target) from raw.prompts)
            using (run_id, prompt_id, occurrence)
            left join score using (run_id, prompt_id, occurrence, repeat_index)
            where run_id = '{run.run_id}'
            order by source_row, repeat_index, option_index, scorer
            """,
        )

    def render(self, prompts: dict[str, Any], template: str | None = None) -> list[str]:
        """Return all prompts of a spec for the fake engine, as the model would receive them."""
        chat = {"chat": {"template": template}} if template else {}
        spec = parse_spec({"model": str(self.model), "prompts": prompts, "engine": FAKE, **chat})
        ready = [request for one in Preparation(spec, identify_spec_model(spec)) for request in one.ready]
        return [str(request.rendered) for request in ready]


def _force(text: str | None) -> Any:
    return {} if text is None else {"structured_outputs": {"choice": [text]}}


def _write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture(scope="module")
def desk(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with EnginePool() as pool:
        yield Desk(tiny_model, settings_in(tmp_path_factory.mktemp("desk")), pool)


@pytest.fixture(scope="module")
def read(desk: Desk) -> dict[tuple[str, str], tuple[str, float, str | None]]:
    """By id of a forced answer and scorer: the answer, its score, and what was extracted."""
    rows = [{"id": row["id"], "q": f"{row['id']}?", "t": row["target"], "force": row["answer"]} for row in FORCED]
    found = desk.ask(
        desk.spec(rows, "t", scorers=SCORERS, prompts=QUESTION), "source_id, scorer, text, value, extracted"
    )
    return {(row, scorer): rest for row, scorer, *rest in found}


@pytest.mark.parametrize("case", sorted({row["case"] for row in FORCED}))
def test_a_stated_answer_is_read_and_none_is_guessed(read, case):
    rows = [row for row in FORCED if row["case"] == case]
    found = [(row["id"], *read[row["id"], row["scorer"]][:2]) for row in rows]
    assert found == [(row["id"], row["answer"], row["score"]) for row in rows]
    wrong = [read[row["id"], row["scorer"]] for row in rows if "letter" in row["scorer"] and not row["score"]]
    assert all(letter is None for _, _, letter in wrong), "a pronoun is not an option"


KEYS = [
    {"id": "k0", "q": "Which one swims?", "o": ["oak", "cod", "owl", "ant"], "key": "B", "force": "B"},
    {"id": "k1", "q": "Which one is red?", "o": ["ruby", "snow", "coal", "grass"], "key": "1", "force": "A"},
    {"id": "k2", "q": "Which one is cold?", "o": ["fire", "ice", "sand", "tea"], "key": "2", "force": "B"},
    {"id": "k3", "q": "Which one flies?", "o": ["cat", "dog", "cow", "gull"], "key": "4", "force": "D"},
]  # fmt: skip


def test_12_keys_from_one_are_places(desk):
    assert desk.ask(desk.spec(KEYS, "key", prompts=QUESTION, scorers=[{"kind": "choice"}]), "value") == [(1,)] * 4
    spec = desk.spec(KEYS, "key", columns={"options": "o", **FREE}, prompts={"template": "{{ q }} "},
                     chat={"template": "plain"}, scorers=[{"kind": "loglikelihood"}])  # fmt: skip
    found = desk.ask(spec, "distinct on (source_row) source_id, extracted, value")
    right = {row["id"]: row["o"][int(row["key"]) - 1] if row["key"].isdigit() else "cod" for row in KEYS}
    assert [(best == right[row], value) for row, best, value in found] == [
        (value == 1, value) for *_, value in found
    ] and len(found) == 4


THINK = (
    "{% for m in messages %}<|{{ m.role }}|>{{ '<think>\n\n</think>\n\n' if m.role == 'assistant' }}{{ m.content }}"
    "{% if not (loop.last and m.role == 'assistant') %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def test_20_an_answer_behind_closed_thinking_and_a_prefill_is_the_answer(desk):
    rows = [{"id": "plain", "q": "One?", "a": "C", "force": "C"}, {"id": "more", "q": "Two?", "a": "C", "force": "C"}]
    spec = desk.spec(rows, "a", prompts=QUESTION, scorers=[{"kind": "choice"}], reasoning={},
                     chat={"template": THINK, "prefill": "The answer is "})  # fmt: skip
    assert desk.ask(spec, "text, reasoning, value") == [("C", None, 1)] * 2


def test_22_json_is_checked_under_the_schema_that_the_backend_did_not_enforce(desk, tmp_path):
    code = {"enum": ["toolong"], "maxLength": 3}
    schema = {"type": "object", "properties": {"code": code}, "required": ["code"], "additionalProperties": False}
    spec = desk.spec([{"id": "c", "q": "A code?"}], columns=FREE, prompts=QUESTION,
                     sampling={"structured_outputs": {"json": schema}}, scorers=[{"kind": "json"}])  # fmt: skip
    [(text, value, reason)] = desk.ask(spec, "text, value, explanation")
    assert json.loads(text) == {"code": "toolong"} and value == 0 and "'toolong' is too long" in reason
    path = flow_kit.write_spec(tmp_path / "spec.yaml", spec.model_dump(mode="json", exclude_none=True))
    dry = flow_kit.run_here("evaluate", path, "--dry-run", "--engine.backend", "fake")
    assert "vLLM does not enforce properties.code.maxLength" in dry.out


def test_24_odd_choices_are_answered_and_no_question_is_its_own_example(desk):
    odd = ["yes", "yes, but no", "C++", "a|b", 'say "hi"', "two\nlines", "日本", r"\d+", " leading", "trailing ", "{}"]
    spec = desk.spec([{"id": "o", "q": "Any?"}], columns=FREE, prompts={**QUESTION, "repeats": 8},
                     sampling={"temperature": 2.0, "seed": 3, "structured_outputs": {"choice": odd}})  # fmt: skip
    assert {text for (text,) in desk.ask(spec, "text")} <= set(odd)
    rows = [{"q": f"Q{number}", "a": f"A{number}"} for number in (0, 1, 2, 0)]
    for seed in range(4):
        few = {"count": 2, "seed": seed}
        inline = {"source": {"kind": "inline", "rows": rows}, "columns": {"target": "a"}, "few_shot": few, **QUESTION}
        assert [text.count(row["q"]) for text, row in zip(desk.render(inline), rows, strict=True)] == [1] * 4


CALLS = (
    "{% for m in messages %}{{ m.role }}: {{ m.content or '' }}{% for call in m.tool_calls or [] %}"
    "{{ call.function.name }}({{ call.function.arguments | tojson }}){% endfor %}|{% endfor %}"
)


def _call(name: str, arguments: Any) -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"messages": [
        {"role": "user", "content": f"{name}?"}, {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "9"},
    ]}  # fmt: skip


def test_01_padding_of_parquet_and_02_arguments_as_text_reach_no_prompt(desk, tmp_path):
    rows = [_call("tide", {"port": "Oban"}), _call("wind", {"hour": 9, "unit": "kn"})]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    texts = [_call("tide", '{"port": "Oban"}'), rows[0], _call("tide", "")]
    files = [
        tmp_path / "rows.parquet", _write_lines(tmp_path / "rows.jsonl", rows),
        _write_lines(tmp_path / "texts.jsonl", texts),
    ]  # fmt: skip
    padded, plain, written = (desk.render({"source": {"kind": "file", "path": str(file)}}, CALLS) for file in files)
    assert padded == plain and 'tide({"port": "Oban"})' in plain[0]
    assert written[:2] == plain[:1] * 2 and "tide({})" in written[2]


def test_14_a_system_column_and_15_a_key_called_values_are_in_the_prompt(desk, tmp_path):
    rows = [
        {"system": "In French.", "conversations": [{"from": "human", "value": "Hello?"}]},
        {"conversations": [{"from": "system", "value": "In French."}, {"from": "human", "value": "Hello?"}]},
        {"conversations": [{"role": "user", "content": "Hello?"}]},
    ]
    path = _write_lines(tmp_path / "rows.jsonl", rows)
    prompts = desk.render({"source": {"kind": "sharegpt", "path": str(path)}}, CALLS)
    assert prompts == ["system: In French.|user: Hello?|"] * 2 + ["user: Hello?|"]
    table = {"source": {"kind": "inline", "rows": [{"table": {"values": [3, 4], "items": ["fir"]}}]}}
    template = {"template": "Add {{ table.values }} of {{ table.items }}."}
    assert desk.render({**table, **template}, CALLS) == ['user: Add [3, 4] of ["fir"].|']


def test_04_05_17_18_19_foreign_events_and_an_odd_environment_end_no_run(tmp_path):
    """One command behind a dead proxy, without a writable home, for a terminal without UTF-8, with Prefect's server."""
    flow_kit.copy_prefect_database(tmp_path)
    bundle_charts(tmp_path / "data" / "cache")
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "2 and 2"}]}, {"type": "text", "text": "4"}]
    contents: list[Any] = [parts, "4", 7, {"text": "4"}, [{"type": "image"}]]
    events = [json.dumps({"choices": [{"delta": {"content": one}, "finish_reason": "stop"}]}) for one in contents]
    rows = [{"q": f"Row {number}", "a": "4"} for number in range(len(events) + 1)]
    with FakeServer(is_vllm=False).running() as server:
        server.scripts.extend(Script(break_after=0, break_with=event) for event in events)
        server.scripts.append(Script(tokens=("4",), line_end="\r"))
        spec = {
            "name": "odd", "model": "fake-model", "max_error_share": 1.0, "scorers": [{"kind": "exact_match"}],
            "prompts": {"source": {"kind": "inline", "rows": rows}, "columns": {"target": "a"}, **QUESTION},
            "engine": {"backend": "server", "warmup": False, "server": {"url": server.url, "endpoint": "chat"}},
            "load": {"arrival": {"kind": "concurrency", "requests": 1}},
        }  # fmt: skip
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "XDG_", "HF_"))}
        env |= dict.fromkeys(("HTTP_PROXY", "http_proxy", "ALL_PROXY"), "http://127.0.0.1:9")
        env |= {"NO_PROXY": "localhost", "HOME": "/proc", "PYTHONIOENCODING": "ascii", "PREFECT_HOME": str(tmp_path)}
        env |= {"ASSAYLINE_DATA_DIR": str(tmp_path / "data"), "PREFECT_API_URL": ""}
        env["PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"] = "240"
        path = flow_kit.write_spec(tmp_path / "spec.yaml", spec)
        run = flow_kit.run_command(flow_kit.evaluate_command(path, "--prefect"), env)
        assert run.code == 0 and "accuracy (exact_match)" in run.out and run.out.isascii(), run.err
        assert len(server.received) == len(rows), "each is sent once"
    answers = "select text, reasoning, error_kind from answer"
    assert flow_kit.query(tmp_path / "data", f"{answers} order by source_row") == [
        ("4", "2 and 2", None), ("4", None, None), *[(None, None, "malformed_stream")] * 3, ("4", None, None),
    ]  # fmt: skip


def test_21_adapters_of_one_server_are_two_models(desk):
    rows = [{"id": str(number), "q": f"{number}?", "a": "2"} for number in range(2)]
    with FakeServer().running() as server:
        server.models = [{"id": name, "owned_by": "vllm", "max_model_len": 256} for name in ("base", "tide")]
        for name, answer in (("base", "no"), ("tide", "2")):
            server.default = Script(tokens=(answer,))
            engine = EngineSpec(backend="server", warmup=False, server={"url": server.url, "model": name})
            spec = desk.spec(rows, "a", name="adapters", columns=FREE, prompts=QUESTION)
            complete(spec.model_copy(update={"engine": engine}), desk.settings, "never")
    board = DatabaseThread(desk.settings).run(lambda connection: find_cells(connection, ["adapters"]))
    assert sorted((cell["model"], cell["mean"]) for cell in board) == [("base", 0), ("tide", 1)]
    assert query(desk.settings, "select count(distinct model_id) from runs where name = 'adapters'") == [(2,)]


def test_25_a_number_without_a_point_is_a_number(desk, tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(
        f"name: 007\nmodel: {desk.model}\nsampling: {{temperature: 1e-5}}\nengine: {{backend: fake}}\n"
        "prompts: {source: {kind: inline, rows: [{q: '1 + 1?'}]}, template: '{{ q }}'}\n"
    )
    for option in ([], ["--sampling.temperature", "1e-5"]):
        run = flow_kit.run_here("evaluate", path, "--dry-run", *option)
        assert run.code == 0 and '"temperature": 1e-05' in run.out and "spec      007, " in run.out
