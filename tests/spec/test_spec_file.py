"""The spec: what a person writes, what they are told when it is wrong, and its identity."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from assayline.benchmark.campaign import read_benchmark, write_campaign
from assayline.benchmark.configurations import BenchmarkAsk, parse_sweep, plan_benchmark
from assayline.errors import SpecError
from assayline.settings import Settings
from assayline.spec.checks import check_arguments
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import SpecFile, find_lost_template, load_spec, override_spec, parse_spec
from assayline.spec.identity import (
    canonical_json,
    config_id,
    spec_hash,
)
from assayline.spec.judges import JudgeScorer
from assayline.spec.suite import load_suite

SOURCE = {"kind": "inline", "rows": [{"prompt": "1 + 1"}]}
BASE: dict[str, Any] = {"model": "some/model", "prompts": {"source": SOURCE}}


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    nested = {
        key: merged(base[key], value) if isinstance(value, dict) and isinstance(base.get(key), dict) else value
        for key, value in changes.items()
    }
    return {**base, **nested}


def spec_with(**changes: Any) -> EvalSpec:
    return parse_spec(merged(BASE, changes))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(BASE))
    return path


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"modle": "x"}, "modle: unknown key; did you mean 'model'?"),
        ({"prompts": {"source": {"kind": "run"}}}, "  prompts.source.run: missing, but required"),
        (
            {"load": {"arrival": {"kind": "poisson", "rate_per_s": 1, "requests": 3}}},
            "  load.arrival.requests: unknown",
        ),
        ({"scorers": [{"kind": "numeric"}, {"kind": "regex"}]}, "  scorers.1.pattern: missing, but required"),
        ({"engine": {"bach_size": 3}}, "engine.bach_size: unknown key; did you mean 'batch_size'?"),
        ({"prompts": {"columns": {"targets": "x"}}}, "columns.targets: unknown key; did you mean 'target'?"),
        ({"prompts": {"source": {"split": "a"}}}, "  prompts.source.split: unknown key; known: kind, rows"),
        ({"prompts": {"source": {"kind": "hub", "spilt": "a"}}}, "spilt: unknown key; did you mean 'split'?"),
        ({"zzz": 1}, "zzz: unknown key; known: adapter, chat, "),
        ({"workers": 0}, "workers: given 0; expected a number from 1 to 4096, or auto"),
        ({"prompts": {"repeats": 99_999_999_999}}, "prompts.repeats: given 99999999999; Input should be less than or"),
        ({"scorers": [{"kind": "exact"}]}, "scorers.0: there is no kind 'exact'; did you mean 'exact_match'?"),
        ({"scorers": ["bleu"]}, "scorers.0: there is no kind 'bleu'; known: choice, code, contains, exact_match"),
        (
            {"scorers": [{"ignore_case": True}]},
            "scorers.0: given {'ignore_case': True}, without a kind. hint: add `kind`: exact_match, contains",
        ),
        ({"max_num_seqs": 4}, "max_num_seqs: unknown key; did you mean 'engine.args.max_num_seqs'?"),
        ({"engine": {"max_model_len": 4}}, "max_model_len: unknown key; did you mean 'engine.args.max_model_len'?"),
        ({"prompts": {"target": "a"}}, "prompts.target: unknown key; did you mean 'prompts.columns.target'?"),
        ({"load": {"arrival": {"kind": "poisson", "rate_per_s": 1, "requests": 4}}}, "hint: set load.arrival.kind, as"),
        ({"scorers": "numeric"}, "scorers: given 'numeric', not a list. hint: write [numeric]"),
        ({"scorers": {"kind": "json"}}, "scorers: given {'kind': 'json'}, not a list. hint: write [{'kind': 'json'}]"),
        (
            {"gate": {"max_accuracy_drop": 5}},
            "gate.max_accuracy_drop: given 5; Input should be less than or equal to 1. hint: 5% is",
        ),
        ({"engine": {"mode": "batch"}}, "engine.mode: given 'batch'; expected 'continuous' or 'barrier'"),
        ({"engine": {"backend": "vllm"}}, "or 'fake'. hint: vLLM in a process of assayline's is offline"),
        ({"prompts": {"source": {"kind": "flie"}}}, "prompts.source: there is no kind 'flie'; did you mean 'file'?"),
        ({"prompts": None}, "prompts: given None"),
    ],
)
def test_a_wrong_value_says_what_was_given_and_expected(changes, expected):
    with pytest.raises(SpecError) as caught:
        spec_with(**changes)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gsm8k", "Spec file gsm8k does not exist. hint: pass @gsm8k for the named benchmark or rubric."),
        ("@gsm8k", "model: missing, but required. hint: set it, or pass --model VALUE"),
    ],
)
def test_a_named_benchmark_that_lacks_its_mark_or_model_says_so(name, expected):
    with pytest.raises(SpecError) as caught:
        load_spec(name)
    assert expected in str(caught.value)


BY_NAME = "the name indicates a secret, and a spec is stored"


SECRET = "hush-hush"


@pytest.mark.parametrize(
    ("engine", "where"),
    [
        ({"env": {"HF_TOKEN": SECRET}}, BY_NAME),
        ({"env": {"VLLM_USE_V1": "1", "OPENAI_API_KEY": SECRET}}, BY_NAME),
        ({"env": {"DATABASE_PASSWORD": SECRET}}, BY_NAME),
        ({"env": {"HF_TOKEN": SECRET}, "mode": "neither", "args": {"hf_token": SECRET}}, BY_NAME),
        ({"args": {"model_loader_extra_config": {"s3_secret_access_key": SECRET}}}, "AWS_SECRET_ACCESS_KEY"),
        ({"args": {"speculative_config": {"draft": [{"hf_token": SECRET}]}}}, "draft.0.hf_token"),
        ({"args": {"tokenizer": f"https://h/t.json?X-Amz-Signature={SECRET}&a=1"}}, "engine.args.tokenizer"),
        ({"backend": "server", "server": {"url": f"https://h/v1?api_key={SECRET}"}}, "engine.server.api_key_env"),
        ({"backend": "server", "server": {"url": f"https://h/v1?sig={SECRET}"}}, "engine.server.api_key_env"),
        ({"backend": "server", "server": {"url": f"https://me:{SECRET}@h/v1"}}, "engine.server.api_key_env"),
    ],
)
def test_a_secret_in_the_engines_part_is_refused_and_not_shown(engine, where):
    refuse_secret(where, engine=engine)


def test_a_secret_elsewhere_is_refused_and_not_shown():
    refuse_secret("headers.Authorization", sampling={"extra_args": {"headers": {"Authorization": SECRET}}})
    refuse_secret("ray_address", ray_address=f"ray://me:{SECRET}@head:10001")


def refuse_secret(where: str, **changes: Any) -> None:
    with pytest.raises(SpecError, match=r"and a spec is stored\.") as caught:
        spec_with(**changes)
    assert where in str(caught.value) and SECRET not in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__suppress_context__
    with pytest.raises(ValidationError) as raw:  # as Prefect prints it
        EvalSpec.model_validate({"model": "m", "prompts": {"source": SOURCE}, **changes})
    assert SECRET not in str(raw.value)


def test_fields_that_only_sound_like_secrets_are_accepted():
    args = {
        "hf_overrides": {"pad_token": "<pad>", "image_token": "<image>", "eos_token": "</s>", "num_key_value_heads": 2},
        "mm_processor_kwargs": {"key": "value"},
        "model_loader_extra_config": {"concurrency": 16, "distributed": True},
    }
    rows = [{"prompt": "q", "token": "walk", "url": "https://h/a.png?sig=1"}]
    spec = spec_with(
        engine={"args": args},
        chat={"kwargs": {"bos_token": "<s>"}},
        prompts={"source": {"kind": "inline", "rows": rows}},
    )
    assert spec.engine.args == args
    env = {"HF_TOKEN_PATH": "/run/token", "TOKENIZERS_PARALLELISM": "false", "VLLM_MAX_TOKENS_PER_EXPERT": "1"}
    assert spec_with(engine={"env": env}).engine.env == env


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # PyYAML's own words for each problem.
        ("name: a\n  model: b\n", ", line 2, is not valid YAML: mapping values are not allowed here."),
        ("prompts: [\nname: a\n", ", line 3, is not valid YAML: expected ',' or ']', but got '<stream end>'."),
        ("a: 1\nb: \x07\n", " is not valid YAML: unacceptable character #x0007: special characters are not allowed"),
        (
            "prompts:\n  template: {{ question }}\n",
            ', line 2, is not valid YAML: found unhashable key. hint: put the template in quotes: "{{ question }}".',
        ),
        (
            'template: {{ a }} or "{{ b }}"?\n',
            ", line 1, is not valid YAML: expected <block end>, but found '<scalar>'. hint: put the template in "
            "quotes: '{{ a }} or \"{{ b }}\"?'.",
        ),
    ],
)
def test_invalid_yaml_error_names_the_line_and_missing_quotes(text, expected, tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    assert str(caught.value).startswith(f"Spec file {path}{expected}")


def test_every_problem_has_a_line_of_its_own():
    with pytest.raises(SpecError) as caught:
        parse_spec({"prompts": {"source": SOURCE}, "workers": 0, "modle": "x"}, origin="mine.yaml")
    first, *problems = str(caught.value).splitlines()
    assert first == "mine.yaml is not a valid spec:"
    assert sorted(problem.split(":")[0].strip() for problem in problems) == ["model", "modle", "workers"]


@pytest.mark.parametrize("length", [{"mean": 5, "min": 6}, {"mean": 5, "max": 4}, {"mean": 0}])
def test_a_token_length_keeps_its_mean_within_its_bounds(length):
    with pytest.raises(SpecError, match="prompt_tokens"):
        spec_with(prompts={"source": {"kind": "synthetic", "count": 1, "prompt_tokens": length, "output_tokens": 4}})


@pytest.mark.parametrize(
    ("field", "text", "expected"),
    [
        ("prompts.limit", "10", 10),
        ("prompts.template", "{{ question }}", "{{ question }}"),
        ("prompts.template", "Q: {{ question }}\nA:", "Q: {{ question }}\nA:"),
        ("chat.system", "Rule: be brief", "Rule: be brief"),
        ("chat.kwargs", "{enable_thinking: false}", {"enable_thinking": False}),
        ("sampling.stop", '["a", "b"]', ["a", "b"]),
        ("engine.args.compilation_config.level", "3", 3),
        ("engine.warmup", "false", False),
        ("revision", "null", None),
        ("model", "007", "007"),
        ("revision", "1e5", "1e5"),
        ("name", "true", "true"),
        ("chat.prefill", "12", "12"),
    ],
)
def test_an_override_is_yaml_unless_it_is_text(file, field, text, expected):
    found: Any = load_spec(file, {field: text}).model_dump()
    for part in field.split("."):
        found = found[part]
    assert found == expected


SCALARS = {
    "1e-5": 1e-5, "1E3": 1000.0, "-.5": -0.5, "007": 7, "010": 10, "0x1F": 31,
    "1:30": "1:30", "1_000": "1_000", "2026-01-01": "2026-01-01", "0b1": "0b1", "1.2.3": "1.2.3",
    "No": "No", "yes": "yes", "on": "on", "off": "off", "y": "y", "true": True, "False": False, "~": None,
    "'1e-5'": "1e-5", '"no"': "no", "[1e-5, no, 1:30]": [1e-5, "no", "1:30"], "{no: 1e5}": {"no": 1e5},
}  # fmt: skip
"""Values of YAML texts by the core schema of YAML 1.2."""


def read_in(place: str, text: str, folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the value of chat.kwargs.x that is given as a text at a place."""
    path, asked = folder / "one.yaml", f"chat: {{kwargs: {{x: {text}}}}}\n"
    plain = f"model: {model}\nengine: {{backend: fake}}\nprompts: {{source: {json.dumps(SOURCE)}}}\n"
    path.write_text(plain + (asked if place in ("file", "judge", "rubric") else ""))
    match place:
        case "option":
            spec = load_spec(path, {"chat.kwargs.x": text})
        case "suite":
            entry = f"evaluations: [{{spec: {path}, overrides: {{chat.kwargs.x: {text}}}}}]"
            (folder / "suite.yaml").write_text(entry)
            spec = load_suite(folder / "suite.yaml").evaluations[0].load(None)
        case "sweep":
            ask = BenchmarkAsk(spec=path, sweep=parse_sweep([f"chat.kwargs.x=[{text}]"]), repeats=1)
            plan = plan_benchmark(ask, Settings(data_dir=folder))
            write_campaign(plan, Settings(data_dir=folder))
            (spec,) = (one.spec for one in read_benchmark(plan.campaign_id, Settings(data_dir=folder)).cells)
        case "judge":
            return JudgeScorer(kind="judge", spec=[str(path)]).spec[0]["chat"]["kwargs"]["x"]
        case "rubric":
            monkeypatch.setattr("assayline.spec.named.RUBRICS", folder)
            spec = load_spec("@one")
        case "benchmark":
            lines = "\n  ".join((plain + asked).splitlines())
            about = "{measures: '', license: '', prompts: 1}"
            path.write_text(f"about: {about}\nspec:\n  {lines}\n")
            monkeypatch.setattr("assayline.spec.named.FOLDER", folder)
            spec = load_spec("@one")
        case _:
            spec = load_spec(path)
    return spec.chat.kwargs["x"]


PLACES = ("file", "option", "suite", "sweep", "judge", "rubric", "benchmark")


@pytest.mark.parametrize("place", PLACES)
def test_a_scalar_has_the_type_of_the_core_schema_everywhere(place, tmp_path, modest_model, monkeypatch):
    found = {text: read_in(place, text, tmp_path, modest_model, monkeypatch) for text in SCALARS}
    assert str(found) == str(SCALARS)  # 7 is not 7.0


@pytest.mark.parametrize("place", PLACES[:5])
def test_a_duplicate_key_is_refused_everywhere_with_both_lines(place, tmp_path, modest_model, monkeypatch):
    with pytest.raises((SpecError, ValidationError), match=r"the key 'a' is already on line \d+\. hint: merge"):
        read_in(place, "{a: 1, b: {c: 2},\n a: 3}", tmp_path, modest_model, monkeypatch)


@pytest.mark.parametrize(
    ("part", "name"),
    [("engine.args", "enforce_eager"), ("engine.args", "async_scheduling"), ("sampling", "ignore_eos")],
)
def test_a_word_for_a_boolean_of_vllm_is_refused(part, name, file):
    with pytest.raises(SpecError, match=f"{name} is 'no'. hint: set it to true or false"):
        check_arguments(load_spec(file, {f"{part}.{name}": "no"}))


def test_override_replaces_only_its_field(file):
    file.write_text(yaml.safe_dump({**BASE, "sampling": {"temperature": 1, "top_p": 0.5}}))
    assert load_spec(file, {"sampling.temperature": "0"}).sampling == {"temperature": 0, "top_p": 0.5}


@pytest.mark.parametrize(
    ("field", "expected"),
    [("model.name", "--model.name cannot be set: `model` is 'some/model'"), ("promts.limit", "did you mean 'prompts'")],
)
def test_an_override_that_fits_nowhere_is_named(file, field, expected):
    with pytest.raises(SpecError) as caught:
        load_spec(file, {field: "1"})
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "does not exist.*examples/arithmetic.yaml"),
        (b"- a", "holds list, not a mapping"),
        (b"", "is empty. hint: set at least"),
        (b"name: a\n\tmodel: b", "line 2, is not valid YAML: a tab stands at its beginning"),
        (b"model: \xff", "cannot be read"),
        ("folder", "cannot be read"),
    ],
)
def test_file_without_a_spec_is_one_message_with_its_name(tmp_path, content, expected):
    path = tmp_path / "mine.yaml"
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(SpecError, match=f"(?s)mine.yaml.*{expected}"):
        load_spec(path)


def test_the_same_meaning_has_the_same_hash():
    spec = spec_with(sampling={"temperature": 0, "stop": ["a"]}, engine={"args": {"dtype": "float32", "seed": 1}})
    reordered = parse_spec(
        {
            "engine": {"args": {"seed": 1, "dtype": "float32"}, "mode": "continuous"},
            "sampling": {"stop": ["a"], "temperature": 0.0},
            "workers": 1,
            "chat": {"template": "default"},
            "prompts": {"repeats": 1, "source": dict(reversed(SOURCE.items())), "columns": {}},
            "name": "evaluation",
            "model": "some/model",
        }
    )
    assert spec_hash(spec) == spec_hash(reordered)
    assert spec_hash(parse_spec(yaml.safe_load(canonical_json(spec)))) == spec_hash(spec)


def test_spec_hash_is_the_same_on_another_ray_cluster():
    """The next job resumes the run on a cluster with another address."""
    here, there = (spec_with(runner="ray", ray_address=address) for address in (None, "10.0.0.1:6379"))
    assert spec_hash(here) == spec_hash(there) and config_id(here, "m") == config_id(there, "m")


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "other/model"},
        {"sampling": {"temperature": 0}},
        {"prompts": {"source": {"rows": [{"prompt": "1 + 2"}]}}},
        {"engine": {"args": {"seed": 2}}},
        {"chat": {"template": "plain"}},
    ],
)
def test_another_meaning_has_another_hash(changes):
    assert spec_hash(spec_with(**changes)) != spec_hash(spec_with())


def test_max_tokens_defaults_to_the_room_left_and_n_is_rejected():
    assert spec_with(sampling={"n": 3, "top_p": 0.5}).sampling_defaults == {"max_tokens": None, "top_p": 0.5}
    for name in ("max_tokens", "max_completion_tokens"):
        assert spec_with(sampling={name: 4}).sampling_defaults == {"max_tokens": 4}


def test_a_gate_limits_speeds_that_there_are():
    data = {
        "model": "m",
        "prompts": {"source": {"kind": "synthetic", "count": 1, "prompt_tokens": 1, "output_tokens": 1}},
    }
    assert parse_spec({**data, "gate": {"max_slowdown": {"ttft_p95_s": 0.2}}}).gate.max_slowdown == {"ttft_p95_s": 0.2}
    for limits in ({"speed": 0.1}, {"ttft_p95_s": -0.1}):
        with pytest.raises(SpecError, match=r"gate\.max_slowdown"):
            parse_spec({**data, "gate": {"max_slowdown": limits}})
    one, other = (parse_spec({**data, "gate": {"max_accuracy_drop": drop}}) for drop in (0.1, 0.2))
    assert config_id(one, "model") == config_id(other, "model") != config_id(one, "another model")


def test_overrides_change_only_their_fields():
    rows = [{"question": None, "answer": "1"}]
    spec = parse_spec(
        {"model": "m", "prompts": {"source": {"kind": "inline", "rows": rows}}, "sampling": {"seed": None}}
    )
    changed = override_spec(spec, {"engine.max_concurrency": 16, "reasoning.close": "</t>"})
    assert (changed.engine.max_concurrency, changed.reasoning.close) == (16, "</t>")
    assert changed.model_copy(update={"engine": spec.engine, "reasoning": None}) == spec
    with pytest.raises(SpecError, match="sweep is not a valid spec"):
        override_spec(spec, {"engine.widnow": 16}, origin="sweep")


def test_lost_template_is_found_in_the_deployment_that_had_it(tmp_path):
    """`prefect deploy` drops fields whose `{{ … }}` it takes for placeholders of its own."""
    written = {"name": "sums", "model": "m", "prompts": {"template": "{{ question }}", "source": {"kind": "inline"}}}
    deployments = tmp_path / "prefect.yaml"
    deployments.write_text(yaml.safe_dump({"deployments": [{"name": "x"}, {"parameters": {"spec": written}}]}))
    arrived = {"name": "sums", "model": "m", "prompts": {"source": {"kind": "inline"}}}
    assert find_lost_template(arrived, deployments) == "{{ question }}"
    assert find_lost_template({**arrived, "name": "other"}, deployments) is None
    assert find_lost_template(written, deployments) is None
    assert find_lost_template(arrived, tmp_path / "none.yaml") is None


def test_a_text_field_of_a_file_is_as_written(tmp_path):
    """Elsewhere a number is a number, and an override wins."""
    path = tmp_path / "spec.yaml"
    path.write_text(
        "name: 007\nmodel: m\nrevision: 0123456\nsampling: {temperature: 1e-5, stop: [no]}\n"
        "prompts: {source: {kind: inline, rows: [{q: 007}]}, columns: {target: 1e1}}\n"
        "engine: {env: {A: 1e5, B: True}}\n"
    )
    spec = load_spec(path, {"revision": "0x10", "engine.env.C": "010"})
    assert (spec.name, spec.revision, spec.prompts.columns.target) == ("007", "0x10", "1e1")
    assert spec.engine.env == {"A": "1e5", "B": "True", "C": "010"}
    assert spec.sampling == {"temperature": 1e-5, "stop": ["no"]} and spec.prompts.source.rows == [{"q": 7}]


def test_spec_file_sets_fields_to_values(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text("name: sums\nmodel: m\nprompts: {source: {kind: file, path: rows.jsonl}}\n")
    spec = SpecFile(file=str(path), overrides={"prompts.limit": 3, "prompts.template": "{{ a }}: {{ b }}"}).load()
    assert (spec.prompts.limit, spec.prompts.template) == (3, "{{ a }}: {{ b }}")
    with pytest.raises(SpecError, match=r"prompts\.limi: unknown key"):
        SpecFile(file=str(path), overrides={"prompts.limi": 3}).load()


def test_parse_spec_takes_null_for_the_defaults_of_a_part():
    least = {"model": "m", "prompts": {"source": {"kind": "inline", "rows": [{"prompt": "p"}]}}}
    spec = parse_spec({**least, "engine": None, "gate": None, "chat": {"kwargs": {}}})
    assert spec == parse_spec(least)
    with pytest.raises(SpecError, match="model"):
        parse_spec({**least, "model": None})


def test_digests_leave_out_defaults_and_keep_kinds():
    """A new field changes no digest, and neither does writing a default. Specs of two kinds never share one."""
    plain = spec_with()
    written = parse_spec(json.loads(canonical_json(plain)))
    assert (spec_hash(written), config_id(written, "m")) == (spec_hash(plain), config_id(plain, "m"))
    assert (spec_hash(plain), config_id(plain, "m")) == (
        "8397edcefb256a4a696971b8266f5611",
        "cfc52cc22910030c1a03340169224801",
    ), "stored runs are resumed and compared by them"
    changed = spec_with(engine={"max_concurrency": 16}, sampling={"temperature": 0.5})
    assert spec_hash(changed) != spec_hash(plain) and config_id(changed, "m") != config_id(plain, "m")
    kinds = {
        name: part["properties"]["kind"]
        for name, part in EvalSpec.model_json_schema()["$defs"].items()
        if "kind" in part.get("properties", {})
    }
    assert len(kinds) > 25 and [name for name, kind in kinds.items() if "default" in kind] == []
