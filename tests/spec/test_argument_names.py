"""Names of vLLM's arguments: errors for what is not among them. `tests/engines/test_vllm_itself.py` compares them."""

from typing import Any

import pytest
from record_kit import fake_spec

from assayline.errors import EngineError, SpecError
from assayline.spec import checks as arguments
from assayline.spec.checks import check_arguments, count_devices, engine_argument_names


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
        ({"engine": {"args": {"data_parallel_size": 2}}}, "use `workers: N`, .*engine.backend: server without a url"),
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


def test_a_server_of_our_own_may_have_replicas_which_take_gpus() -> None:
    args = {"data_parallel_size": 2, "tensor_parallel_size": 4}
    check_arguments(fake_spec(engine={"backend": "server", "args": args}))
    assert count_devices(args) == 8
    assert count_devices({**args, "prefill_context_parallel_size": 2, "decode_context_parallel_size": 2}) == 16


def test_without_vllm_the_fake_engine_still_runs_and_the_real_one_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arguments.importlib.util, "find_spec", lambda name: None)
    engine_argument_names.cache_clear()
    check_arguments(fake_spec(engine={"backend": "fake", "args": {"anything": 1}}))
    with pytest.raises(EngineError, match=r"vLLM is not installed here\. `make setup`"):
        check_arguments(fake_spec(engine={"backend": "offline"}))
