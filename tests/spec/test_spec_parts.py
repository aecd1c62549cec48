"""Loads, servers, objectives, media and prices in a spec: invalid values, and their messages."""

from typing import Any

import pytest

from assayline.errors import SpecError
from assayline.run.begin import add_price
from assayline.settings import Settings
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import parse_spec
from assayline.spec.identity import canonical_json, config_id, spec_hash

ASYNC = {"backend": "async"}


ROWS = {"kind": "inline", "rows": [{"prompt": "1 + 1"}]}
PRICE = {"currency": "EUR", "per_gpu_hour": 2.5}


def spec_of(**parts: Any) -> EvalSpec:
    return parse_spec({"model": "m", "prompts": {"source": ROWS}, **parts})


def load_of(kind: str, **fields: Any) -> dict[str, Any]:
    """A load of this arrival kind; fields of the load itself are given as `load_…`."""
    own = {name.removeprefix("load_"): value for name, value in fields.items() if name.startswith("load_")}
    return {"arrival": {"kind": kind, **{n: v for n, v in fields.items() if not n.startswith("load_")}}, **own}


def verdict(**values: Any) -> dict[str, Any]:
    return {"scorers": [{"kind": "verdict", **values}]}


def media(**values: Any) -> dict[str, Any]:
    return {"prompts": {"source": ROWS, "media": values}}


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        (load_of("constant", rate_per_s=0), "a rate above 0"),
        (load_of("poisson", rate_per_s=float("nan")), "a rate above 0"),
        (load_of("poisson", rate_per_s=float("inf"), burstiness=2), "a rate above 0"),
        (load_of("constant"), "rate_per_s: missing"),
        (load_of("concurrency", requests=0), "requests: given 0"),
        (load_of("trace", path="t", speed=0), "speed: given 0"),
        (load_of("poisson", rate_per_s=1, load_warmup_s=6, load_cooldown_s=4, load_max_duration_s=10), "leave nothing"),
        (load_of("steady", rate_per_s=1), "steady"),
        ({"slos": [{"name": "fast"}]}, "no limit is set"),
        ({"slos": [{"name": "fast", "ttft_s": 1}, {"name": "fast", "e2e_s": 1}]}, "duplicate names"),
        ({"engine": {"backend": "server", "server": {"url": "127.0.0.1:8000"}}}, "not a valid URL"),
        (
            {"engine": {"backend": "server", "server": {"url": "http://me:secret@host/v1"}}},
            "contains a password or a key",
        ),
        (media(max_pixels=0), "greater than or equal to 1"),
        (media(marks={"image": "<m>", "audio": "<m>"}), "overlap or are empty"),
        (verdict(), "set either values or scale"),
        (verdict(values={True: 1, False: 0}), "YAML reads true and false as booleans"),
        (verdict(values={"right": 2, "wrong": 0}), "less than or equal to 1"),
        (verdict(values={"Right": 1, "right ": 0}), "differ by case or space only"),
        (verdict(scale=[5, 1]), "the lowest verdict and then the highest"),
        (verdict(scale=[1, float("inf")]), "finite"),
        ({"price": {}}, "no rate is set. hint: set at least one of per_gpu_hour"),
        ({"price": {"currency": "euros", "per_kwh": 0.3}}, "currency"),
        ({"price": {"per_gpu_hour": float("inf")}}, "per_gpu_hour"),
        ({"price": {"per_million_cached_tokens": 1}}, "hint: set per_million_input_tokens"),
        ({"price": {"per_gpu_minute": 1}}, "did you mean 'per_gpu_hour'"),
    ],
)
def test_a_part_that_cannot_be_is_refused(parts, told):
    parts = {"engine": ASYNC, "load": parts} if "arrival" in parts else parts
    with pytest.raises(SpecError, match=told):
        spec_of(**parts)


def test_a_load_is_part_of_the_configuration_and_an_objective_is_not():
    slow, fast = (spec_of(engine=ASYNC, load=load_of("constant", rate_per_s=rate)) for rate in (1, 2))
    judged = spec_of(
        engine=ASYNC, load=load_of("constant", rate_per_s=1), slos=[{"name": "fast", "ttft_s": 1, "tpot_s": None}]
    )
    assert config_id(slow, "model") == config_id(judged, "model") != config_id(fast, "model")
    assert judged.slos[0].limits == {"ttft_s": 1.0}
    assert (slow.load is not None and slow.load.is_open_loop, slow.engine.is_streaming) == (True, True)


def test_a_url_is_kept_without_its_last_slash():
    spec = spec_of(engine={"backend": "server", "server": {"url": "https://host:8000/v1/"}})
    assert spec.engine.server.url == "https://host:8000/v1"
    assert spec.engine.is_remote and not spec_of(engine={"backend": "server"}).engine.is_remote


def test_a_trace_without_a_path_is_that_of_the_source():
    source = {"kind": "trace", "path": "t.jsonl"}
    load = spec_of(prompts={"source": source}, engine=ASYNC, load=load_of("trace", speed=3)).load
    assert load is not None and load.trace_speed == 3
    other = spec_of(prompts={"source": source, "shuffle_seed": 1}, engine=ASYNC, load=load_of("trace", path="u")).load
    assert other is not None and other.trace_speed is None


def test_a_column_of_media_may_be_named_alone():
    columns = spec_of(prompts={"source": ROWS, "columns": {"images": "i", "audios": ["a", "b"]}}).prompts.columns
    assert columns.media == {"image": ["i"], "audio": ["a", "b"]}


def test_a_spec_without_media_is_the_spec_that_it_was():
    images, none = ({"prompts": {"source": ROWS, "columns": {"images": value}, "media": {}}} for value in ("i", []))
    assert spec_hash(spec_of()) == spec_hash(spec_of(**none)) != spec_hash(spec_of(**images))
    assert spec_hash(spec_of()) != spec_hash(spec_of(**media(max_pixels=100)))


def test_price_is_stored_and_not_part_of_the_spec_digest():
    free, priced = spec_of(), spec_of(price=PRICE)
    assert spec_hash(free) == spec_hash(priced) == spec_hash(spec_of(price={**PRICE, "per_gpu_hour": 3}))
    assert config_id(free, "model") == config_id(priced, "model")
    assert '"per_gpu_hour": 2.5' in canonical_json(priced)


def test_the_machines_price_is_that_of_specs_without_one(tmp_path):
    settings = Settings(data_dir=tmp_path, price=PRICE)
    priced = add_price(spec_of(), settings)
    assert priced.price is not None and (priced.price.currency, priced.price.per_gpu_hour) == ("EUR", 2.5)
    own = spec_of(price={"per_kwh": 0.3})
    assert add_price(own, settings) is own
    assert add_price(spec_of(), Settings(data_dir=tmp_path)).price is None


def test_a_machines_price_that_is_none_names_the_setting(tmp_path):
    settings = Settings(data_dir=tmp_path, price={"per_gpu_hour": "dear"})
    with pytest.raises(SpecError, match=r"ASSAYLINE_PRICE: given .*price\.per_gpu_hour: .*hint: give JSON"):
        add_price(spec_of(), settings)


def test_limits_on_cost_are_numbers_by_metric():
    gate: dict[str, Any] = {"max_cost_increase": {"cost_per_right_answer": 1}}
    assert spec_of(gate=gate).gate.max_cost_increase == {"cost_per_right_answer": 1.0}
    assert spec_hash(spec_of()) == spec_hash(spec_of(gate={}))


def test_verdict_takes_numbers_as_verdicts_and_keeps_its_label_apart_from_its_name():
    (scorer,) = spec_of(**verdict(values={1: 1, 0: 0}, label="person", name="judged")).scorers or []
    assert scorer.title == "judged" and scorer.model_dump(mode="json") == {
        "kind": "verdict", "name": "judged", "values": {"1": 1.0, "0": 0.0},
        "scale": None, "label": "person",
    }  # fmt: skip
