"""What a spec says of loads, servers and objectives: what is refused, and in which words."""

from typing import Any

import pytest

from assayline.errors import SpecError
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import parse_spec
from assayline.spec.identity import config_id

ASYNC = {"backend": "async"}


def spec_of(**parts: Any) -> EvalSpec:
    source = {"kind": "inline", "rows": [{"prompt": "1 + 1"}]}
    return parse_spec({"model": "m", "prompts": {"source": source}, **parts})


def load_of(kind: str, **fields: Any) -> dict[str, Any]:
    """A load of this arrival kind; fields of the load itself are given as `load_…`."""
    own = {name.removeprefix("load_"): value for name, value in fields.items() if name.startswith("load_")}
    return {"arrival": {"kind": kind, **{n: v for n, v in fields.items() if not n.startswith("load_")}}, **own}


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        (load_of("constant", rate_per_s=0), "a rate above 0"),
        (load_of("poisson", rate_per_s=-1), "a rate above 0"),
        (load_of("poisson", rate_per_s=float("nan")), "a rate above 0"),
        (load_of("gamma", rate_per_s=float("inf"), burstiness=1), "a rate above 0"),
        (load_of("gamma", rate_per_s=1, burstiness=0), "burstiness: given 0"),
        (load_of("constant"), "rate_per_s: missing"),
        (load_of("concurrency", requests=0), "requests: given 0"),
        (load_of("trace", path="t", speed=0), "speed: given 0"),
        (load_of("poisson", rate_per_s=1, load_warmup_s=6, load_cooldown_s=4, load_max_duration_s=10), "leave nothing"),
        (load_of("steady", rate_per_s=1), "steady"),
        ({"slos": [{"name": "fast"}]}, "no limit is given"),
        ({"slos": [{"name": "fast", "ttft_s": 0}]}, "ttft_s: given 0"),
        ({"slos": [{"name": "fast", "ttft_s": 1}, {"name": "fast", "e2e_s": 1}]}, "two have the same name"),
        ({"engine": {"backend": "server", "server": {"url": "127.0.0.1:8000"}}}, "expected http:// or https://"),
        ({"engine": {"backend": "server", "server": {"url": "http://me:secret@host/v1"}}}, "holds a password or a key"),
    ],
)
def test_a_load_an_objective_or_a_url_that_cannot_be_is_refused(parts, told):
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
    source = {"kind": "trace", "format": "mooncake", "path": "t.jsonl"}
    load = spec_of(prompts={"source": source}, engine=ASYNC, load=load_of("trace", speed=3)).load
    assert load is not None and load.trace_speed == 3
    other = spec_of(prompts={"source": source, "shuffle_seed": 1}, engine=ASYNC, load=load_of("trace", path="u")).load
    assert other is not None and other.trace_speed is None
