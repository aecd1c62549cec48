"""Names of vLLM's arguments: those of the installed vLLM, and errors for what is not among them."""

import json
import subprocess
import sys
from typing import Any

import pytest
from core_records import fake_spec

from assayline.engines import arguments
from assayline.engines.arguments import check_arguments, engine_argument_names, sampling_parameter_names
from assayline.errors import EngineError, SpecError

REAL_NAMES = """
import dataclasses, inspect, json
from vllm import EngineArgs, SamplingParams
given = inspect.signature(SamplingParams).parameters
print(json.dumps([[field.name for field in dataclasses.fields(EngineArgs)], list(given)]))
"""


@pytest.mark.vllm
def test_the_names_are_those_of_the_installed_vllm() -> None:
    """Peers, row 15: every argument reaches vLLM."""
    output = subprocess.run([sys.executable, "-c", REAL_NAMES], capture_output=True, text=True, check=True).stdout
    engine, sampling = json.loads(output.splitlines()[-1])
    assert engine_argument_names() == set(engine)
    assert sampling_parameter_names() == {name for name in sampling if not name.startswith("_")}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"engine": {"args": {"max_num_seq": 3}}}, r"engine\.args\.max_num_seq: .*did you mean 'max_num_seqs'\?"),
        ({"engine": {"args": {"device": "cuda"}}}, r"engine\.args\.device: vLLM has no such argument"),
        ({"sampling": {"temprature": 0}}, r"sampling\.temprature: .*did you mean 'temperature'\?"),
        ({"sampling": {"guided_json": {}}}, r"sampling\.guided_json: vLLM has no such argument"),
    ],
)
def test_a_misspelt_argument_names_the_nearest(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(SpecError, match=expected):
        check_arguments(fake_spec(**changes))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"engine": {"args": {"model": "x"}}}, "the spec's own `model`"),
        ({"engine": {"args": {"revision": "x"}}}, "the spec's own `revision`"),
        ({"engine": {"args": {"disable_log_stats": True}}}, "always on"),
        ({"engine": {"args": {"data_parallel_size": 2}}}, "use `workers`"),
        ({"engine": {"args": {"stream_interval": 4}}}, "stamps every token"),
        ({"sampling": {"output_kind": 1}}, "record_token_times"),
        ({"sampling": {"stream_interval": 4}}, "record_token_times"),
        ({"engine": {"args": {"tensor_parallel_size": "two"}}}, "is 'two', expected a whole number"),
    ],
)
def test_an_argument_that_cannot_be_set_so_is_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(SpecError, match=expected):
        check_arguments(fake_spec(**changes))


def test_good_arguments_pass() -> None:
    args = {"max_num_seqs": 64, "compilation_config": {"level": 0}, "quantization": None}
    check_arguments(fake_spec(engine={"args": args}, sampling={"n": 2, "logit_bias": {}, "seed": 1}))


def test_without_vllm_the_fake_engine_still_runs_and_the_real_one_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arguments.importlib.util, "find_spec", lambda name: None)
    engine_argument_names.cache_clear()
    check_arguments(fake_spec(engine={"backend": "fake", "args": {"anything": 1}}))
    with pytest.raises(EngineError, match=r"vLLM is not installed here\. `make setup`"):
        check_arguments(fake_spec(engine={"backend": "offline"}))
