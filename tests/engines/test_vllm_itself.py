"""The installed vLLM without an engine: names, flags, refusals. One process asks it for all tests.

Errors that vLLM raises after minutes of loading are raised before: device, nested arguments, sampling.
"""

import json
import math
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from host_kit import HOSTS, PROGRAM
from run_kit import PATIENCE_S

from assayline.prompts.row import RowError, read_messages
from assayline.requests.chat import as_parts
from assayline.spec.checks import NUMBERS, engine_argument_types, sampling_parameter_types

pytestmark = pytest.mark.vllm

QUESTIONS = """
import contextlib, dataclasses, importlib, inspect, io, json, os, socket, sys
from pathlib import Path
from assayline.clock import RunClock
from assayline.engines.host.__main__ import Host
from assayline.engines.host.channel import HostChannel
from assayline.engines.host.server.process import list_flags
from assayline.engines.host.vllm.rows import check_before_load, try_order
from assayline.engines.messages import Channel, Failed, Open, Refused
from assayline.spec.engine import EngineSpec

from vllm import EngineArgs, SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.config import ModelConfig
from vllm.renderers.chat_utils import parse_chat_messages
from vllm.utils.argparse_utils import FlexibleArgumentParser

asked = json.loads(Path(sys.argv[1]).read_text())
told = {}
told["engine arguments"] = [field.name for field in dataclasses.fields(EngineArgs)]
told["sampling parameters"] = list(inspect.signature(SamplingParams).parameters)

for room in ("launchers", "common", "openai"):  # where the module is depends on the version
    with contextlib.suppress(ImportError):
        make_arg_parser = importlib.import_module(f"vllm.entrypoints.{room}.cli_args").make_arg_parser
        break
parser, flags = make_arg_parser(FlexibleArgumentParser()), asked["flags"]
parsed = AsyncEngineArgs.from_cli_args(parser.parse_args(list_flags(flags)))
default = AsyncEngineArgs(model=flags["model"])
expected = {name: getattr(default, name) if value is None else value for name, value in flags.items()}
told["misread flags"] = [name for name, value in expected.items() if getattr(parsed, name) != value]
with contextlib.redirect_stderr(io.StringIO()) as words, contextlib.suppress(SystemExit):
    parser.parse_args(list_flags({**flags, "max_num_seqs": "many"}))
    print("taken", file=words)
told["refused flag"] = words.getvalue()


def order_of(args, sampling, device, backend="offline", model="no/model"):
    engine = EngineSpec(backend=backend, args=args, device=device)
    return Open(engine=engine, model=model, sampling=sampling, clock=RunClock.start())


workers = []


def hear(order):
    "What a host tells its worker first."
    ours, theirs = socket.socketpair()
    workers.append(Channel(ours))  # which stay open: a host kills its process group when its worker is gone
    workers[-1].send(order)
    assert Host(HostChannel(theirs.detach())).run() == 1
    match workers[-1].receive(60):
        case Refused(error):
            return f"{type(error).__name__}: {error}"
        case Failed() as failed:
            return f"failed of {failed.exception}: {failed.message}"


def is_taken(name, value):
    try:
        SamplingParams(**{name: value})
    except Exception:  # its errors share no base across versions
        return False
    return True


def read_chat(messages):
    "What vLLM makes of a chat before its template; None if it refuses it."
    try:
        return parse_chat_messages(messages, config, "openai")[0]
    except Exception:
        return None


config = ModelConfig(asked["flags"]["model"])
told["chats"] = [read_chat(chat) for chat in asked["chats"]]
told["takes"] = [is_taken(*case) for case in asked["put"]]
told["good"] = [check_before_load(order_of(*order)) for order in asked["good"]]
told["bad"] = [hear(order_of(*order)) for order in asked["bad"]]
told["bad of the async engine"] = hear(order_of(*asked["bad"][0], backend="async"))
told["tried"] = [str(try_order(order_of(args, {}, "auto", model=asked["flags"]["model"]))) for args in asked["tried"]]
told["no model"] = hear(order_of({}, {}, "auto", "async", asked["empty folder"]))
Path(sys.argv[2]).write_text(json.dumps(told))
sys.stdout.flush()
os._exit(0)
"""
GOOD: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {}, "auto"),
    ({}, {}, "cpu"),
    ({"compilation_config": {"mode": 0}, "structured_outputs_config": {"backend": "xgrammar"}}, {}, "auto"),
    ({"compilation_config": 3}, {"max_tokens": None, "structured_outputs": {"json": {"type": "object"}}}, "auto"),
]
BAD: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    (
        {},
        {},
        "cuda",
        "DeviceError: The spec asks for device 'cuda', but vLLM here runs on cpu. hint: set engine.device to",
    ),
    *(
        ({name: {"no_such": 0}}, {}, "auto", f"SpecError: engine.args.{name} has unknown keys ['no_such']. Known: ")
        for name in ("compilation_config", "structured_outputs_config", "attention_config", "profiler_config")
    ),
    *(
        ({}, sampling, "auto", f"SpecError: Sampling parameters {sampling} are not usable: ")
        for sampling in (
            {"temperature": 5},
            {"top_p": 0},
            {"max_tokens": "many"},
            {"structured_outputs": {"regx": "a"}},
            {"structured_outputs": {"regex": "a", "choice": ["b"]}},
        )
    ),
]
TRIED: list[tuple[dict[str, Any], str]] = [
    ({"max_model_len": 64, "enforce_eager": True}, "None"),
    ({"kv_cache_dtype": "auto", "dtype": "fp16"}, "vLLM rejects engine.args.dtype 'fp16': Input should be 'auto', "),
    (
        {"dtype": "float32", "quantization": "awqq"},
        "vLLM rejects engine.args.quantization 'awqq': Unknown quantization",
    ),
    (
        {"max_model_len": 99999},
        "vLLM rejects engine.args.max_model_len 99999: User-specified max_model_len (99999) is ",
    ),
    ({"scheduling_policy": "best"}, "vLLM rejects engine.args.scheduling_policy 'best': Input should be 'fcfs' or "),
    (
        {"reasoning_parser": "nope"},
        "vLLM rejects engine.args.reasoning_parser 'nope': Reasoning parser 'nope' not found",
    ),
    (
        {"speculative_config": {"method": "no"}},
        "vLLM rejects the model or its engine.args, at method: Input should be ",
    ),
]
"""Arguments that only vLLM's configuration judges, and its words."""


def called(*functions: Any, **message: Any) -> dict[str, Any]:
    return {
        "role": "assistant",
        "tool_calls": [{"id": "c", "type": "function", "function": one} for one in functions],
    } | message


CHATS: list[dict[str, Any]] = [
    *(called({"name": "f", "arguments": given}, content=None) for given in (
        '{"a": "b"}', {"a": None}, "", None, "{", "[]", "42", '"text"', "null", [1], 7, '{"a": {"b": [1, null]}}'
    )),
    called({"name": "f"}, {"name": "g", "arguments": "{}"}),
    called(content=None, reasoning="because"),
    called({"name": "f", "arguments": "{}"}, content="Let me see."),
    *({"role": "assistant", "content": "x", "tool_calls": calls} for calls in (
        [], None, [7], [{"name": "f"}], [{"type": "custom", "function": {}}], [{"type": "function", "function": None}]
    )),
    {"role": "assistant", "content": None},
    {"role": "assistant"},
    {"role": "user", "content": "x", "tool_calls": [{"id": "c"}]},
    {"role": "user", "content": ["a", {"type": "text", "text": "b"}, {"type": "input_text", "text": "c"}]},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}, {"type": "thinking", "thinking": "hm"}]},
    {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    {"role": "tool", "tool_call_id": "c", "content": "12:40"},
    {"role": "tool", "tool_call_id": "c", "content": []},
    {"role": "tool", "tool_call_id": "c"},
    {"role": "system", "content": "s", "name": None},
]  # fmt: skip
WHOLE = ("top_k", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs")
"""Of these, only whole numbers are put to vLLM, which does not look at the type of each."""
PUT = [
    (name, value)
    for name in NUMBERS["sampling"]
    for value in (-3, -2, -1, 0, 1, 2, 5, *(() if name in WHOLE else (-0.1, 0.1, 1.1, 2.1, math.inf, math.nan)))
]
FLAGS = {
    "max_num_seqs": 8, "max_model_len": -1, "gpu_memory_utilization": 0.5,
    "enforce_eager": True, "enable_prefix_caching": False, "dtype": "float32", "kv_cache_memory_bytes": 2**27,
    "seed": None,
    "cudagraph_capture_sizes": [1, 2, 4], "hf_overrides": {"a.b": {"c": 1}}, "served_model_name": ["x y"],
    "logits_processors": ["a.b:C"],
}  # fmt: skip


@pytest.fixture(scope="module")
def told(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("told")
    (folder / "empty").mkdir()
    asked = {
        "good": GOOD,
        "bad": [order[:3] for order in BAD],
        "flags": {"model": str(tiny_model), **FLAGS},
        "empty folder": str(folder / "empty"),
        "put": PUT,
        "tried": [args for args, _ in TRIED],
        "chats": [[chat] for chat in CHATS],
    }
    (folder / "asked").write_text(json.dumps(asked))
    (folder / "questions.py").write_text(QUESTIONS)
    program = [str(folder / name) for name in ("questions.py", "asked", "told")]
    ours, theirs = socket.socketpair()
    with ours, theirs, open(folder / "log", "wb") as log:
        env = {**os.environ, PROGRAM: json.dumps(program)}
        ended = HOSTS.launch(env, theirs.fileno(), log.fileno()).wait(PATIENCE_S)
    printed = (folder / "log").read_text()
    assert ended == 0, printed
    return {**json.loads((folder / "told").read_text()), "log": printed}


def test_the_names_are_those_of_the_installed_vllm(told):
    """Every argument reaches vLLM."""
    assert engine_argument_types().keys() == set(told["engine arguments"])
    assert sampling_parameter_types().keys() == {
        name for name in told["sampling parameters"] if not name.startswith("_")
    }


def test_flags_are_read_as_the_arguments_that_they_were(told):
    assert told["misread flags"] == []
    assert "many" in told["refused flag"] and "taken" not in told["refused flag"]


def test_impossible_orders_are_refused_and_good_ones_pass(told):
    """Every argument reaches vLLM or raises; vLLM itself drops unknown nested keys silently.

    The model does not exist: a host refuses before it opens the model.
    """
    assert told["good"] == [None] * len(GOOD)
    for message, (*_, expected) in zip(told["bad"], BAD, strict=True):
        assert str(message).startswith(expected)
    assert told["bad of the async engine"] == told["bad"][0]


def test_arguments_are_refused_by_name_before_a_model_loads(told):
    for message, (_, expected) in zip(told["tried"], TRIED, strict=True):
        assert message.startswith(expected)


def test_a_model_that_the_async_engine_does_not_load_is_refused(told):
    assert str(told["no model"]).startswith("SpecError: vLLM rejects the model or its engine.args: ")
    assert "Traceback" in told["log"]


def test_rules_for_numbers_are_those_of_sampling_params(told):
    """Values around every bound, put to vLLM itself."""
    ours = [NUMBERS["sampling"][name][0](value) for name, value in PUT]
    assert [case for case, is_taken, is_ours in zip(PUT, told["takes"], ours, strict=True) if is_taken != is_ours] == []


@pytest.mark.parametrize("number", range(len(CHATS)))
def test_read_messages_gives_a_template_what_vllm_gives_it(told, number):
    try:
        ours = [as_parts(message) for message in read_messages([CHATS[number]], lambda part, where: part)]
    except RowError:
        ours = None
    assert ours == told["chats"][number]
