"""What a price may say, and that it changes nothing about which run is which."""

from typing import Any

import pytest
from run_kit import fake_spec

from assayline.errors import SpecError
from assayline.evaluation.begin import add_price
from assayline.settings import Settings
from assayline.spec.file import parse_spec
from assayline.spec.identity import canonical_json, config_id, spec_hash

PRICE = {"currency": "EUR", "per_gpu_hour": 2.5}


def test_a_price_is_no_part_of_a_specs_identity_and_is_stored():
    free, priced = fake_spec(), fake_spec(price=PRICE)
    assert spec_hash(free) == spec_hash(priced) == spec_hash(fake_spec(price={**PRICE, "per_gpu_hour": 3}))
    assert config_id(free, "model") == config_id(priced, "model")
    assert "price" not in canonical_json(free), "so that an older spec reads as it did"
    assert '"per_gpu_hour": 2.5' in canonical_json(priced)


@pytest.mark.parametrize(
    ("price", "words"),
    [
        ({}, "no rate is given; set at least one of per_gpu_hour"),
        ({"currency": "EUR"}, "no rate is given"),
        ({"currency": "euros", "per_kwh": 0.3}, "currency"),
        ({"per_gpu_hour": -1}, "per_gpu_hour"),
        ({"per_gpu_hour": float("inf")}, "per_gpu_hour"),
        ({"per_gpu_hour": 1, "gpus": 0}, "gpus"),
        ({"per_million_cached_tokens": 1}, "Set per_million_input_tokens"),
        ({"per_gpu_minute": 1}, "did you mean 'per_gpu_hour'"),
    ],
)
def test_a_price_that_is_none_is_refused(price, words):
    with pytest.raises(SpecError, match=words):
        parse_spec({"model": "m", "prompts": {"source": {"kind": "inline", "rows": [{"prompt": "a"}]}}, "price": price})


def test_the_machines_price_is_that_of_specs_without_one(tmp_path):
    settings = Settings(data_dir=tmp_path, price=PRICE)
    priced = add_price(fake_spec(), settings)
    assert priced.price is not None and (priced.price.currency, priced.price.per_gpu_hour) == ("EUR", 2.5)
    own = fake_spec(price={"per_kwh": 0.3})
    assert add_price(own, settings) is own
    assert add_price(fake_spec(), Settings(data_dir=tmp_path)).price is None


def test_a_machines_price_that_is_none_names_the_setting(tmp_path):
    settings = Settings(data_dir=tmp_path, price={"per_gpu_hour": "dear"})
    with pytest.raises(SpecError, match=r"ASSAYLINE_PRICE was given .*price\.per_gpu_hour: .*Expected JSON"):
        add_price(fake_spec(), settings)


def test_limits_on_cost_are_of_one_family_with_those_on_speed():
    gate: dict[str, Any] = {"max_cost_increase": {"cost_per_right_answer": 0.1}, "max_cost": {"cost": 5}}
    assert fake_spec(gate=gate).gate.max_cost == {"cost": 5.0}
    assert spec_hash(fake_spec()) == spec_hash(fake_spec(gate={}))
    assert "max_cost" not in canonical_json(fake_spec())
    slow = dict.fromkeys(("requests_per_s", "ttft_p50_s", "ttft_p95_s", "ttft_p99_s", "e2e_p50_s", "e2e_p99_s"), 0.1)
    with pytest.raises(SpecError, match="one family of tests, of at most 6; given 7"):
        fake_spec(gate={**gate, "max_slowdown": slow})
