"""Names of vLLM's arguments: errors for what is not among them. `tests/engines/test_vllm_itself.py` compares them."""

import pytest
from run_kit import fake_spec

from assayline.errors import EngineError, SpecError
from assayline.spec import checks as arguments
from assayline.spec.checks import check_arguments, count_devices, engine_argument_types


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"engine": {"args": {"max_num_seq": 3}}}, r"engine\.args\.max_num_seq: .*did you mean 'max_num_seqs'\?"),
        ({"engine": {"args": {"device": "cuda"}}}, r"engine\.args\.device: vLLM has no such argument"),
        ({"engine": {"args": {"model": "x"}}}, "the spec field `model`"),
        ({"engine": {"args": {"disable_log_stats": True}}}, "always on"),
        ({"engine": {"args": {"data_parallel_size": 2}}}, "set `workers: N` .*engine.backend: server without a url"),
        ({"engine": {"args": {"stream_interval": 4}}}, "records every token"),
        ({"engine": {"args": {"tensor_parallel_size": "two"}}}, r"is 'two'\. hint: set it to a whole number"),
        ({"engine": {"args": {"gpu_memory_utilization": 1.7}}}, r"gpu_memory_utilization is 1\.7.*at most 1\."),
        ({"sampling": {"temprature": 0}}, r"sampling\.temprature: .*did you mean 'temperature'\?"),
        ({"sampling": {"guided_json": {}}}, r"sampling\.guided_json: vLLM has no such argument"),
        (
            {"sampling": {"structured_outputs": {"regex": "a", "jsn": {}}}},
            r"sampling\.structured_outputs\.jsn: vLLM has no such argument; did you mean 'json'",
        ),
        ({"sampling": {"output_kind": 1}}, "record_token_times"),
        ({"sampling": {"temperature": -1}}, r"sampling\.temperature is -1\. hint: set it to a number from 0 to 2\."),
        ({"sampling": {"temperature": "1e-3"}}, r"sampling\.temperature is '1e-3'"),  # to YAML 1.1 this is text
        ({"sampling": {"top_p": 0}}, "top_p is 0.*above 0 and at most 1"),
        ({"sampling": {"top_k": -2}}, "top_k is -2.*whole number of at least -1"),
        ({"sampling": {"presence_penalty": 3}}, "presence_penalty is 3.*from -2 to 2"),
        ({"sampling": {"min_tokens": 9, "max_tokens": 8}}, r"min_tokens \(9\) exceeds max_tokens \(8\)"),
    ],
)
def test_an_argument_that_vllm_would_refuse_is_refused_before(part, expected):
    with pytest.raises(SpecError, match=expected):
        check_arguments(fake_spec(**part))


def test_arguments_that_vllm_takes_pass():
    sampling = {"temperature": 2, "top_p": 1, "top_k": -1, "max_tokens": None, "logprobs": True, "min_tokens": 0}
    args = {"max_model_len": "32k", "block_size": None, "max_num_seqs": 64, "compilation_config": {"level": 0}}
    check_arguments(fake_spec(sampling={**sampling, "n": 2, "logit_bias": {}, "seed": 1}, engine={"args": args}))
    check_arguments(
        fake_spec(sampling={"temperature": 3}, engine={"backend": "server", "server": {"url": "http://h/v1"}})
    )


def test_a_server_of_our_own_may_have_replicas_which_take_gpus():
    args = {"data_parallel_size": 2, "tensor_parallel_size": 4}
    check_arguments(fake_spec(engine={"backend": "server", "args": args}))
    assert count_devices(args) == 8
    assert count_devices({**args, "prefill_context_parallel_size": 2, "decode_context_parallel_size": 2}) == 16


def test_without_vllm_the_fake_engine_still_runs_and_the_real_one_says_what_to_install(monkeypatch):
    monkeypatch.setattr(arguments.importlib.util, "find_spec", lambda name: None)
    engine_argument_types.cache_clear()
    check_arguments(fake_spec(engine={"backend": "fake", "args": {"anything": 1}}))
    with pytest.raises(EngineError, match=r"vLLM is not installed\. hint: `make setup`"):
        check_arguments(fake_spec(engine={"backend": "offline"}))
