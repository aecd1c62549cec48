"""A batch file in, a run, output and error file out: held line by line against OpenAI's own types."""

import datetime
import itertools
import json
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import run_kit
from openai.types import Completion as TextCompletion
from openai.types.chat import ChatCompletion
from run_kit import batch_line, chat_line, text_line, write_batch

from assayline.errors import SpecError
from assayline.export.batch import name_errors
from assayline.export.batch import write_batch as write_lines
from assayline.export.make import export_run
from assayline.export.rows import ExportedRun
from assayline.prompts.sources.batch import read_chat_body, read_text_body
from assayline.settings import Settings
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import parse_spec

QUESTIONS = {f"q{number}": f"What is {number} + 1?" for number in range(6)}


def spec_of(model: Path, path: Path, **more: Any) -> EvalSpec:
    source = {"kind": "openai_batch", "path": str(path)}
    data = {"name": "batch", "model": str(model), "prompts": {"source": source}, "engine": {"backend": "fake"}}
    return parse_spec({**data, "max_error_share": 1.0, **more})


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def export(settings: Settings, run_id: str, output: Path, **more: Any) -> tuple[list[Any], list[Any], list[str]]:
    """Lines of the output file, of the error file, and what was said."""
    exported = export_run(settings, run_id, "openai-batch", output, **more)
    files = [read_lines(path) if path in exported.files else [] for path in (output, name_errors(output))]
    assert [path for path in (output, name_errors(output)) if path.exists()] == exported.files
    return files[0], files[1], exported.sentences


def check_answer(line: dict[str, Any], custom_id: str) -> Any:
    assert set(line) == {"id", "custom_id", "response", "error"}
    assert line["custom_id"] == custom_id and line["error"] is None and line["id"].startswith("batch_req_")
    assert set(line["response"]) == {"status_code", "request_id", "body"} and line["response"]["status_code"] == 200
    return line["response"]["body"]


@pytest.mark.slow
def test_a_batch_goes_in_and_comes_out_line_by_line(tmp_path, settings, tiny_model):
    asked = [chat_line(name, text, max_tokens=3) for name, text in QUESTIONS.items()]
    several = chat_line("several", "What is 7 + 1?", n=3, max_tokens=2, seed=1)
    path = write_batch(
        tmp_path / "in.jsonl", *asked[:3], chat_line("bad", stream=True), "{no json", *asked[3:], several, asked[0]
    )
    run_id = run_kit.complete(spec_of(tiny_model, path, shard_requests=4), settings).run_id
    answered, failed, sentences = export(settings, run_id, tmp_path / "out" / "batch.jsonl")

    assert [line["custom_id"] for line in answered] == [*QUESTIONS, "several"], "the order of the file"
    for line, name in zip(answered, [*QUESTIONS, "several"], strict=True):
        body = ChatCompletion.model_validate(check_answer(line, name))
        assert body.model == "m" and body.usage is not None
        assert [choice.index for choice in body.choices] == ([0, 1, 2] if name == "several" else [0])
        assert all(choice.message.content and choice.finish_reason == "stop" for choice in body.choices)
        assert body.usage.completion_tokens == (6 if name == "several" else 3)
        assert body.usage.total_tokens == body.usage.prompt_tokens + body.usage.completion_tokens
    assert len({line["id"] for line in answered}) == len(answered)

    assert [line["custom_id"] for line in failed] == ["bad", None, "q0"]
    for line, kind in zip(failed, ["row_error", "unreadable_row", "row_error"], strict=True):
        assert line["error"] is None and line["response"]["status_code"] == 400
        error = line["response"]["body"]["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["code"] == kind
        assert error["type"] == "invalid_request_error" and error["message"].endswith((".", "'"))
    assert sentences == ["7 lines answered, 3 with an error."]


@pytest.mark.slow
def test_text_completions_come_out_as_such(tmp_path, settings, tiny_model):
    path = write_batch(tmp_path / "in.jsonl", text_line("a", "one two", max_tokens=2), text_line("b", [5, 6], n=2))
    run_id = run_kit.complete(spec_of(tiny_model, path), settings).run_id
    answered, failed, _ = export(settings, run_id, tmp_path / "out.jsonl")
    assert failed == []
    first, second = (TextCompletion.model_validate(check_answer(*pair)) for pair in zip(answered, "ab", strict=True))
    assert (first.object, len(first.choices), first.choices[0].text) == ("text_completion", 1, "two")
    assert len(second.choices) == 2 and second.usage is not None and second.usage.completion_tokens == 32


@pytest.mark.slow
def test_batch_export_of_a_killed_run_has_its_answers_and_names_the_rest(tmp_path, settings, tiny_model):
    path = write_batch(tmp_path / "in.jsonl", *(chat_line(name, text) for name, text in QUESTIONS.items()))
    spec = spec_of(tiny_model, path, shard_requests=3)
    killed = run_kit.begin_and_vanish(spec, settings, 2, 1)  # parts that no database has seen
    answered, failed, sentences = export(settings, killed.run_id, tmp_path / "out.jsonl")
    assert [line["custom_id"] for line in answered] == ["q0", "q1", "q3"]
    assert [line["custom_id"] for line in failed] == ["q2", "q4", "q5"]
    assert all(line["response"] is None and line["error"]["code"] == "not_answered" for line in failed)
    assert "3 of 6 requests prepared so far are answered and exported" in sentences[1]

    assert run_kit.complete(spec, settings).run_id == killed.run_id
    with pytest.raises(SpecError, match="already exists"):
        export(settings, killed.run_id, tmp_path / "out.jsonl")
    answered, failed, sentences = export(settings, killed.run_id, tmp_path / "out.jsonl", force=True)
    assert [line["custom_id"] for line in answered] == list(QUESTIONS)
    assert failed == [] and len(sentences) == 1, "the error file of before is gone, and nothing is said of a gap"


@pytest.mark.slow
def test_rows_of_other_sources_have_ids_of_their_own(settings, make_spec, tmp_path):
    spec = make_spec(engine={"backend": "fake"}, prompts={"limit": 3, "repeats": 2})
    answered, failed, _ = export(settings, run_kit.complete(spec, settings).run_id, tmp_path / "out.jsonl")
    assert [line["custom_id"] for line in answered] == ["row-0", "row-1", "row-2"] and failed == []
    assert [len(line["response"]["body"]["choices"]) for line in answered] == [2, 2, 2]


def row_of(number: int, repeat: int = 0, **values: Any) -> dict[str, Any]:
    """Return the query's row for one request."""
    row = {
        "source_row": number, "occurrence": 0, "repeat_index": repeat, "request_id": f"{number}{repeat}" * 16,
        "source_id": f"line-{number}", "metadata_json": '{"url": "/v1/chat/completions", "model": "m"}',
        "sampling_json": "{}", "worker": "worker-0", "prompt_tokens": 4, "cached_tokens": None, "output_tokens": 2,
        "finish_reason": "stop", "stop_reason": None, "text": "yes", "reasoning": None, "logprobs_json": None,
        "output_token_ids": [5, 6], "error_kind": None, "error_message": None,
    }  # fmt: skip
    return {**row, **values}


def write(tmp_path: Path, *rows: dict[str, Any], state: str = "completed") -> tuple[list[Any], list[Any]]:
    spec = {"prompts": {"source": {"kind": "openai_batch"}}}
    started = datetime.datetime(2026, 1, 1)
    run = ExportedRun(tmp_path, {"state": state, "started_at": started, "model": "model"}, spec, len(rows), 0)
    with (tmp_path / "o").open("w") as output, (tmp_path / "e").open("w") as errors:
        prompts = [list(group) for _, group in itertools.groupby(rows, itemgetter("source_row", "occurrence"))]
        write_lines(run, prompts, "<{}>".format, output, errors)
    return read_lines(tmp_path / "o"), read_lines(tmp_path / "e")


def test_reasoning_and_log_probabilities_have_their_places(tmp_path):
    stored = [{"5": -0.1, "7": -2.0, "8": -1.0}, {"6": -0.2}]
    values = {"logprobs_json": json.dumps(stored), "reasoning": "hm"}
    chat = row_of(0, sampling_json='{"logprobs": 2}', **values)
    text = row_of(1, metadata_json='{"url": "/v1/completions", "model": "m"}', **values)
    (first, second), _ = write(tmp_path, chat, text)
    choice = ChatCompletion.model_validate(first["response"]["body"]).choices[0]
    assert first["response"]["body"]["choices"][0]["message"]["reasoning"] == "hm"
    assert choice.logprobs is not None and choice.logprobs.content is not None
    assert [(one.token, one.logprob, one.bytes) for one in choice.logprobs.content] == [
        ("<5>", -0.1, list(b"<5>")), ("<6>", -0.2, list(b"<6>")),
    ]  # fmt: skip
    assert [one.token for one in choice.logprobs.content[0].top_logprobs] == ["<5>", "<8>"], "the likeliest two"
    found = TextCompletion.model_validate(second["response"]["body"]).choices[0].logprobs
    assert found is not None and found.tokens == ["<5>", "<6>"] and found.token_logprobs == [-0.1, -0.2]
    assert found.text_offset == [0, 3] and found.top_logprobs == [
        {"<5>": -0.1, "<8>": -1.0, "<7>": -2.0},
        {"<6>": -0.2},
    ]


@pytest.mark.parametrize(
    ("values", "state", "status", "code"),
    [
        ({"error_kind": "prompt_too_long", "worker": "prepare"}, "completed", 400, "prompt_too_long"),
        ({"error_kind": "sampling_error"}, "completed", 400, "sampling_error"),
        ({"error_kind": "engine_gave_up"}, "completed", 500, "engine_gave_up"),
        ({"error_kind": "not_sent"}, "completed", None, "batch_expired"),
        ({"worker": None}, "cancelled", None, "batch_cancelled"),
        ({"worker": None}, "failed", None, "not_answered"),
    ],
)
def test_batch_export_maps_errors_to_status_codes(tmp_path, values, state, status, code):
    good, bad = row_of(0), row_of(0, 1, text=None, error_message="Why.", **values)
    answered, (line,) = write(tmp_path, good, bad, row_of(1), state=state)
    assert [one["custom_id"] for one in answered] == ["line-1"], "one bad choice fails its line, and no other"
    if status is None:
        assert line["response"] is None and line["error"]["code"] == code
    else:
        error = line["response"]["body"]["error"]
        assert (line["response"]["status_code"], error["code"], error["message"]) == (status, code, "Why.")


@pytest.mark.slow
@pytest.mark.vllm
def test_real_answers_with_parameters_of_their_own(tmp_path, settings, tiny_model):
    """Real vLLM: greedy and seeded lines, choices, log-probabilities, JSON, stop texts and a refusal, in one run."""
    from vllm.entrypoints.launchers.run_batch import BatchRequestOutput

    ask = {"temperature": 0, "max_tokens": 8}
    messages = [{"role": "user", "content": "What is 2 + 3?"}]
    path = write_batch(
        tmp_path / "in.jsonl",
        chat_line("greedy", "What is 2 + 3?", logprobs=True, top_logprobs=2, **ask),
        chat_line("choices", "What is 2 + 3?", n=2, seed=7, temperature=1.0, max_tokens=4),
        chat_line("json", "What is 2 + 3?", response_format={"type": "json_object"}, temperature=0, max_tokens=24),
        chat_line("short", "What is 2 + 3?", temperature=0, max_completion_tokens=1),
        chat_line("refused", "What is 2 + 3?", temperature=-1),
        batch_line("again", "/v1/chat/completions", {"messages": messages, **ask}),
    )
    engine = {"args": {"max_model_len": 256, "max_num_seqs": 32, "dtype": "float32", "enforce_eager": True}}
    engine["args"]["kv_cache_memory_bytes"] = 2**27
    run_id = run_kit.complete(spec_of(tiny_model, path, engine=engine), settings).run_id
    answered, failed, _ = export(settings, run_id, tmp_path / "out.jsonl")
    assert [line["custom_id"] for line in answered] == ["greedy", "choices", "json", "short", "again"]
    bodies = {line["custom_id"]: ChatCompletion.model_validate(line["response"]["body"]) for line in answered}
    for line in answered:
        assert BatchRequestOutput.model_validate(line).response is not None
    texts = {name: [choice.message.content for choice in body.choices] for name, body in bodies.items()}
    assert texts["greedy"] == texts["again"] == ["5"]
    assert len(texts["choices"]) == 2 and (texts["json"][0] or "").lstrip().startswith("{")
    assert bodies["short"].usage is not None and bodies["short"].usage.completion_tokens == 1
    logprobs = bodies["greedy"].choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    spoken = "".join(one.token for one in logprobs.content).removesuffix("<|end|>")
    assert spoken == "5" and all(len(one.top_logprobs) == 2 for one in logprobs.content)
    assert all(one.top_logprobs[0].logprob == one.logprob for one in logprobs.content), "greedy takes the likeliest"
    (line,) = failed
    assert line["custom_id"] == "refused" and line["response"]["body"]["error"]["code"] == "sampling_error"


@pytest.mark.vllm
def test_bodies_mean_what_they_mean_to_vllms_server():
    """Here, as a process that has imported vLLM for one test has it for the other."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest

    from assayline.engines.host.vllm.rows import build_sampling_params

    shared: dict[str, Any] = {
        "temperature": 0.3, "top_p": 0.9, "top_k": 4, "min_p": 0.1, "seed": 11, "stop": ["x", "y"], "min_tokens": 2,
        "presence_penalty": 0.1, "frequency_penalty": 0.2, "repetition_penalty": 1.1, "logit_bias": {"7": 2.0},
        "ignore_eos": True, "stop_token_ids": [3], "include_stop_str_in_output": True, "skip_special_tokens": False,
        "bad_words": ["no"], "prompt_logprobs": 1, "response_format": {"type": "json_object"}, "max_tokens": 6,
    }  # fmt: skip
    chat = {"messages": [{"role": "user", "content": "x"}], **shared, "logprobs": True, "top_logprobs": 3}
    text = {"prompt": "x", **shared, "logprobs": 2}
    theirs = [
        ChatCompletionRequest.model_validate(chat).to_sampling_params(6, {}),
        CompletionRequest.model_validate(text).to_sampling_params(6, {}),
    ]
    for wishes, params in zip((read_chat_body(chat), read_text_body(text)), theirs, strict=True):
        ours = build_sampling_params(json.loads(json.dumps(wishes.sampling)), record_token_times=False)
        assert repr(ours) == repr(params)
