"""Rereads: which answers are read and how, what is stored of them, and the verdict, on fake and on real engines."""

import json
import shutil
from itertools import product

import pytest
from run_kit import ENGINE_ARGS, ROOT, add_noise, complete

from assayline.api import benchmark, gate, night, reread
from assayline.errors import ComparisonError, RunFailedError, SpecError
from assayline.flows import cli
from assayline.run.rebuild import rebuild_run
from assayline.run.tokens import build_readings
from assayline.spec.file import override_spec, parse_spec
from assayline.store.database import connect, read_rows
from assayline.store.manifest import list_manifests


def ask(settings, query, *values):
    with connect(settings.database_path, 10) as connection:
        return read_rows(connection, query, *values)


def trial(model, **changes):
    rows = [{"question": f"{n} and {n + 1} is", "answer": str(n), "id": f"row-{n}"} for n in range(40)]
    data = {
        "name": "trial",
        "model": str(model),
        "prompts": {"source": {"kind": "inline", "rows": rows}, "template": "{{ question }}", "repeats": 2},
        "sampling": {"max_tokens": 6},
        "engine": {"backend": "fake"},
    }
    return parse_spec(data | changes)


def test_answers_are_read_as_token_ids_and_their_tokens_are_stored_once(modest_model, settings):
    spec = trial(modest_model)
    reference = complete(spec, settings).run_id
    report = reread(reference, spec, prompts=20, settings=settings)
    assert (report.verdict, report.baseline) == ("pass", reference)
    runs = {run.name: run for run in list_manifests(settings.data_dir / "runs")}
    own, again, other = (runs[f"trial read by {by}"] for by in ("itself", "itself in other batches", "trial"))
    assert report.candidate == other.run_id and {run.purpose for run in (own, again, other)} == {"reread"}
    read = ask(settings, "from requests where run_id = ? order by request_id", own.run_id)
    given = """
        select request_id, prompt_token_ids || output_token_ids as ids, len(output_token_ids) as tokens
        from requests join completions using (run_id, request_id) where run_id = ? order by request_id
    """
    stored = {row["request_id"]: row for row in ask(settings, given, reference)}
    assert len(read) == 20 and {row["repeat_index"] for row in read} == {0}
    for row in read:
        assert row["prompt_token_ids"] == stored[row["request_id"]]["ids"]
        assert json.loads(row["sampling_json"])["prompt_logprobs"] == 20
    left = "select count(prompt_logprobs_json) as n from completions where run_id = ?"
    tokens = "select request_id, count(*) as tokens, min(position) as first from token where run_id = ? group by all"
    for run in (own, again, other):
        found = ask(settings, tokens, run.run_id)
        assert {row["request_id"]: row["tokens"] for row in found} == {
            row["request_id"]: stored[row["request_id"]]["tokens"] for row in read
        }
        assert ask(settings, left, run.run_id) == [{"n": 0}], "the table token has them"
    order = """
        select list(request_id order by filename, file_row_number) as ids
        from read_parquet(?, filename = true, file_row_number = true)
    """
    parts = [str(settings.run_dir(run.run_id) / "parts" / "requests" / "*.parquet") for run in (own, again)]
    first, second = (ask(settings, order, part)[0]["ids"] for part in parts)
    assert sorted(first) == sorted(second) and first != second, "other batches"
    before = ask(
        settings, "select * exclude (started_at) from metric_value where run_id = ? order by all", other.run_id
    )
    assert {row["metric"]: row["value"] for row in before}["kl"] == 0
    rebuilt = ask(settings, "from tokens where run_id = ? order by request_id, position", other.run_id)
    settings.database_path.unlink()
    for run in runs.values():
        rebuild_run(settings.run_dir(run.run_id), settings.database_path, 10)
    assert ask(settings, "from tokens where run_id = ? order by request_id, position", other.run_id) == rebuilt
    assert ask(settings, "select count(prompt_logprobs_json) as n from completions") == [{"n": 0}]


def test_readings_by_the_reference_are_kept_and_an_engine_is_read_each_time(modest_model, settings):
    spec = trial(modest_model)
    reference = complete(spec, settings).run_id
    reports = [reread(reference, spec, prompts=8, settings=settings) for _ in range(2)]
    assert reports[0].candidate != reports[1].candidate
    assert len(list_manifests(settings.data_dir / "runs")) == 1 + 3 + 1
    reread(reference, spec, prompts=8, resume="never", settings=settings)
    assert len(list_manifests(settings.data_dir / "runs")) == 5 + 3
    verdicts = ask(settings, "from verdict where baseline_run_id = ?", reference)
    assert [row["limit_on"] for row in verdicts] == ["probabilities"] * 3


def test_a_night_reads_before_it_asks_and_its_gate_judges_the_reading(modest_model, settings, capsys, monkeypatch):
    spec = trial(modest_model, gate={"reread": {"max_kl": 0.005, "prompts": 8}, "max_slowdown": {}})
    reference = complete(spec, settings).run_id
    candidate = complete(override_spec(spec, {"engine.args.max_num_seqs": 3}), settings).run_id
    [found] = [one for one in gate(candidate, reference, settings=settings).checks if one.check == "probabilities"]
    assert found.verdict == "inconclusive" and f"assayline reread {reference} SPEC" in found.words
    result = night(spec, baseline=reference, settings=settings)
    runs = {run.run_id: run for run in list_manifests(settings.data_dir / "runs")}
    read = [run for run in runs.values() if run.name == "trial read by trial"]
    assert [run.run_id < result.run_id for run in read] == [True]
    assert {one.check: one.verdict for one in result.gate.checks}["probabilities"] == "pass"
    assert (
        ask(settings, "select count(*) as n from engine where run_id = ? and ending = 'failed'", result.run_id)[0]["n"]
        == 0
    )
    monkeypatch.setenv("ASSAYLINE_DATA_DIR", str(settings.data_dir))
    assert cli.run("compare", [candidate, reference, "--reread"]) == 0
    assert "The engine is not told apart from that of" in capsys.readouterr().out
    found = [one for one in gate(candidate, reference, settings=settings).checks if one.check == "probabilities"]
    assert [one.verdict for one in found] == ["pass"]


def test_the_command_prints_a_plan_a_verdict_and_json(modest_model, settings, capsys, monkeypatch, tmp_path):
    spec = trial(modest_model)
    reference = complete(spec, settings).run_id
    monkeypatch.setenv("ASSAYLINE_DATA_DIR", str(settings.data_dir))
    path = tmp_path / "spec.yaml"
    path.write_text(spec.model_dump_json(exclude_defaults=True))
    words = [reference, str(path), "--prompts", "8"]
    assert cli.run("reread", [*words, "--dry-run"]) == 0
    assert "itself, in other batches: to do" in capsys.readouterr().out
    assert cli.run("reread", [*words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["verdict"], printed["reference"]) == ("pass", reference)
    assert {row["metric"] for row in printed["metrics"]} >= {"kl", "kl_floor", "kl_ratio", "same_top", "nll_change"}
    assert cli.run("reread", [*words, "--dry-run"]) == 0
    assert capsys.readouterr().out.count("stored as run") == 2
    few = [*words[:2], "--prompts", "3", "--detailed-exit-code"]
    assert cli.run("reread", few) == 13
    assert "About 5 prompts would decide" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.run("reread", [*words, "--max-kl", "0"])
    assert cli.run("reread", ["nobody", str(path)]) == 2


def test_an_answer_that_does_not_fit_is_an_error_row_and_is_not_cut(modest_model):
    spec = trial(modest_model, prompts={"source": {"kind": "reread", "run": "r"}}, sampling={})
    row = {"prompt_id": "p", "occurrence": 0, "source_id": None, "messages_json": "[]", "repeat_index": 0}
    row |= {"request_id": "r", "prompt_token_ids": [1, 2, 3], "output_token_ids": [4, 5], "rendered": "a", "text": "b"}
    [short], [long] = (list(build_readings(spec, [row], limit)) for limit in (6, 5))
    assert short.ready[0].prompt_token_ids == [1, 2, 3, 4, 5] and short.ready[0].option_tokens == 2
    assert long.ready == [] and long.errors[0].error_kind == "prompt_too_long" and long.errors[0].prompt_tokens == 5


def test_other_prompts_and_other_tokens_are_the_finding(modest_model, settings, tmp_path):
    """A template that drops the BOS, another system message, another vocabulary: nothing is read."""
    spec = trial(modest_model)
    reference = complete(spec, settings).run_id
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
    for chat in ({"chat.template": template}, {"chat.system": "Be brief."}):
        with pytest.raises(ComparisonError, match=r"30 of 30 rendered prompts differ.* from token (1|2) on"):
            reread(reference, override_spec(spec, chat), settings=settings)
    other = tmp_path / "other"
    shutil.copytree(modest_model, other)
    (other / "vocab.txt").write_text("its content counts, and no token differs")
    assert reread(reference, override_spec(spec, {"model": str(other)}), settings=settings).verdict == "pass"
    swap_tokens(other)
    with pytest.raises(ComparisonError, match="different tokenizers: 2 of"):
        reread(reference, override_spec(spec, {"model": str(other)}), settings=settings)
    assert len(list_manifests(settings.data_dir / "runs")) == 1 + 3


@pytest.mark.parametrize("kind", ["inline", "openai_batch"])
def test_a_dropped_bos_is_the_finding(modest_model, settings, tmp_path, kind):
    """A tokenizer with the same tokens that does not begin a text with its BOS, for text and ready prompts."""
    other = shutil.copytree(modest_model, tmp_path / "other")
    file = other / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"post_processor": None}))
    spec = trial(modest_model, chat={"template": "plain"})
    if kind == "openai_batch":
        lines = [{"custom_id": str(n), "method": "POST", "url": "/v1/completions", "body": {"prompt": f"{n} is"}}
                 for n in range(8)]  # fmt: skip
        batch = tmp_path / "batch.jsonl"
        batch.write_text("".join(json.dumps(line) + "\n" for line in lines))
        spec = trial(modest_model, prompts={"source": {"kind": kind, "path": str(batch)}})
    reference = complete(spec, settings).run_id
    [first] = {row["first"] for row in ask(settings, "select prompt_token_ids[1] as first from requests")}
    assert first == 0, "the BOS"
    with pytest.raises(ComparisonError) as found:
        reread(reference, override_spec(spec, {"model": str(other)}), settings=settings)
    words = {
        "inline": "different prompts: 30 of 30 rendered prompts differ. The first has 11 tokens, not 12, and differs "
        "from token 1 on: '<bos>20 and 2' → '20 and 21'.",
        "openai_batch": "different tokenizers: 'a' is [67], not [0, 67].",
    }
    assert words[kind] in str(found.value)
    assert len(list_manifests(settings.data_dir / "runs")) == 1


def test_a_benchmark_by_kl_reads_after_its_runs_and_names_the_cheapest_within_the_limit(modest_model, settings):
    spec = trial(modest_model)
    sweep = {"chat.system": ["", "Be brief."], "engine.max_concurrency": [4, 8]}
    for _ in range(2):  # the second time, the readings are stored
        with pytest.raises(RunFailedError, match=r"system=Be brief\., .*=4: The engines read different prompts: 30 of"):
            benchmark(spec, repeats=1, sweep=sweep, quality="kl", settings=settings)
    runs = list_manifests(settings.data_dir / "runs")
    ordered = sorted(runs, key=lambda run: run.clock.started_wall_s)
    assert [run.purpose for run in ordered] == ["benchmark"] * 4 + ["reread"] * 3
    rows = {row["configuration"]: row for row in ask(settings, "from frontier")}
    base, same, *others = (rows[", ".join(f"{field}={value}" for field, value in zip(sweep, both, strict=True))]
                           for both in product(('""', "Be brief."), (4, 8)))  # fmt: skip
    assert (base["verdict"], same["verdict"], same["kl"], same["kl_prompts"]) == ("baseline", "pass", 0, 30)
    assert {(row["verdict"], row["kl"], row["is_best"]) for row in others} == {(None, None, False)}
    assert (same["cost_unit"], same["quality"]) == ("s/million tokens", "kl")
    assert same["cost"] == pytest.approx(1e6 / same["output_tokens_per_s"])
    page = next((settings.data_dir / "benchmarks").glob("*/report.md")).read_text()
    first, _, decision = page.split("**")[1:6:2]
    assert first.startswith("system Be brief., max concurrency 4: The engines read different prompts: 30 of 30 ")
    assert ("per million output tokens" in decision) == same["is_best"] != ("No cheaper configuration" in decision)


def test_a_benchmark_by_kl_refuses_what_cannot_be_read_before_its_first_run(modest_model, settings, tmp_path):
    spec = trial(modest_model)
    for sweep, quality in ((None, "kl"), ({"engine.max_concurrency": [4, 8]}, "ppl")):
        with pytest.raises(SpecError, match=r"--quality (kl needs one spec and --sweep|ppl is not a quality)"):
            benchmark(spec, sweep=sweep, quality=quality, settings=settings)
    served = {"backend": "server", "server": {"url": "http://127.0.0.1:9/v1", "endpoint": "chat"}}
    other = shutil.copytree(modest_model, tmp_path / "other")
    swap_tokens(other)
    for changes, sweep, error in (
        ({"engine": served}, {"engine.max_concurrency": [4, 8]}, "cannot be used with engine.server.endpoint chat"),
        ({}, {"model": [str(modest_model), str(other)]}, "different tokenizers: 2 of"),
    ):
        with pytest.raises((SpecError, ComparisonError), match=error):
            benchmark(trial(modest_model, **changes), sweep=sweep, quality="kl", settings=settings)
    assert not list_manifests(settings.data_dir / "runs")


def swap_tokens(folder):
    file = folder / "tokenizer.json"
    vocabulary = json.loads(file.read_text())
    tokens = vocabulary["model"]["vocab"]
    first, second = sorted(tokens, key=tokens.get)[-2:]
    tokens[first], tokens[second] = tokens[second], tokens[first]
    file.write_text(json.dumps(vocabulary))


def test_a_run_that_cannot_be_read_is_refused(modest_model, settings):
    spec = trial(modest_model)
    rows = [{"prompt": "a", "options": [" b", " c"], "target": " b"}]
    source = {"source": {"kind": "inline", "rows": rows}, "columns": {"options": "options"}}
    likelihood = trial(modest_model, prompts=source, scorers=["loglikelihood"])
    with pytest.raises(SpecError, match="has no answer that an engine can read"):
        reread(complete(likelihood, settings).run_id, spec, settings=settings)
    served = {"backend": "server", "server": {"url": "http://127.0.0.1:9/v1", "endpoint": "chat"}}
    server = override_spec(spec, {"engine": served})
    with pytest.raises(SpecError, match=r"prompts.source reread cannot be used with engine.server.endpoint chat"):
        reread(complete(spec, settings).run_id, server, settings=settings)


@pytest.mark.vllm
def test_real_engines(tiny_model, settings, tmp_path):
    """float32 against itself, bfloat16, and planted noise of 1% and 3% in the weights, on one reference."""
    spec = plan_sums(tiny_model)
    reference = complete(spec, settings).run_id
    kl = "select value from metric_values where run_id = ? and metric = ?"

    def read(**changes):
        report = reread(reference, override_spec(spec, changes), settings=settings)
        values = [ask(settings, kl, report.candidate, name)[0]["value"] for name in ("kl", "kl_floor", "nll_change")]
        return report, *values

    chunks = {"engine.args.max_num_batched_tokens": 32, "engine.args.enable_prefix_caching": True}
    for equal in ({"engine.max_concurrency": 5}, chunks):
        report, own, floor, change = read(**equal)
        assert report.verdict == "pass" and own <= 1e-6 and floor <= 1e-6 and abs(change) <= 1e-5
    report, rounded, _, _ = read(**{"engine.args.dtype": "bfloat16"})
    assert rounded > 10 * own
    assert reread(reference, override_spec(spec, {"engine.backend": "async"}), settings=settings).verdict == "pass"
    found = [rounded]
    for share in (0.01, 0.03):
        report, noisy, _, change = read(model=str(add_noise(tiny_model, tmp_path / f"noise-{share}", share)))
        assert report.verdict == "fail" and "gives other probabilities" in report.checks[0].words
        assert noisy == report.checks[0].candidate
        full, moved = find_full_kl(settings, report.candidate, tiny_model, tmp_path / f"noise-{share}")
        assert 0.75 * full <= noisy <= full * 1.001 and change == pytest.approx(moved, abs=1e-4)
        found.append(noisy)
    assert found == sorted(found)


@pytest.mark.vllm
@pytest.mark.rare
def test_every_backend_reads_the_same_probabilities(tiny_model, settings, tmp_path):
    spec = plan_sums(add_noise(tiny_model, tmp_path / "noise", 0.03))
    reference = complete(plan_sums(tiny_model), settings).run_id
    found = []
    for backend in ("offline", "async", "server"):
        report = reread(reference, override_spec(spec, {"engine.backend": backend}), settings=settings)
        found.append(read_metrics(settings, report.candidate))
    assert found[0]["kl"] > 1e-3
    for other in found[1:]:
        assert other == pytest.approx(found[0], rel=1e-3)


def read_metrics(settings, run_id):
    names = ("kl", "same_top", "nll_change", "logprob_change")
    rows = ask(settings, "select metric, value from metric_values where run_id = ?", run_id)
    return {row["metric"]: row["value"] for row in rows if row["metric"] in names}


def plan_sums(model, **changes):
    rows = [json.loads(line) for line in (ROOT / "examples" / "arithmetic.jsonl").read_text().splitlines()][:30]
    data = {
        "name": "sums",
        "model": str(model),
        "prompts": {"source": {"kind": "inline", "rows": rows}, "template": "{{ question }}"},
        "sampling": {"temperature": 1, "max_tokens": 24, "ignore_eos": True, "seed": 1},
        "engine": {"args": ENGINE_ARGS},
    }
    return parse_spec(data | changes)


RECOMPUTE = """
    with reading as (select run_id, spec_json ->> '$.prompts.source.reads[0]' as own_run_id from run where run_id = ?),
    own as (
        select request_id, position, rest_share, unnest(top_token_ids) as id, exp(unnest(top_logprobs)) as p
        from token where run_id = (select own_run_id from reading)
    ),
    other as (
        select request_id, position, rest_share, unnest(top_token_ids) as id, exp(unnest(top_logprobs)) as q
        from token where run_id = (select run_id from reading)
    ),
    buckets as (
        select request_id, position, if(p is null or q is null, -1, id) as bucket,
            coalesce(sum(p), 0) as listed_p, coalesce(sum(q), 0) as listed_q
        from own full join other using (request_id, position, id) group by all
        union all
        select request_id, position, -1, any_value(own.rest_share), any_value(other.rest_share)
        from own join other using (request_id, position) group by all
    ),
    shares as (
        select request_id, position, greatest(sum(listed_p), 1e-7) as p, greatest(sum(listed_q), 1e-7) as q
        from buckets group by request_id, position, bucket
    ),
    answers as (select request_id, sum(p * ln(p / q) - p + q) / count(distinct position) as kl from shares group by all)
    select avg(kl) as kl from answers
"""
"""The mean divergence of a reading from the probabilities that two engines list, and the rest as one."""


@pytest.mark.vllm
def test_the_frontier_by_kl_follows_from_the_tokens(tiny_model, settings, tmp_path):
    """float32 against bfloat16, and 3% of noise in the weights; a plain query finds each row's kl again."""
    spec = plan_sums(tiny_model, gate={"reread": {"max_kl": 0.0005}})
    noisy = str(add_noise(tiny_model, tmp_path / "noise", 0.03))
    sweep = {"model": [str(tiny_model), noisy], "engine.args.dtype": ["float32", "bfloat16"]}
    result = benchmark(spec, repeats=1, sweep=sweep, quality="kl", settings=settings)
    found = {row["configuration"].replace(str(tiny_model), "tiny").replace(noisy, "noisy"): row
             for row in result.frontier}  # fmt: skip
    base, rounded, noise, both = (found[f"model={one}, engine.args.dtype={dtype}"]
                                  for one, dtype in product(("tiny", "noisy"), ("float32", "bfloat16")))  # fmt: skip
    assert base["verdict"] == "baseline" and base["kl"] <= 1e-6 < rounded["kl"] < noise["kl"]
    assert [row["verdict"] for row in (rounded, noise, both)] == ["pass", "fail", "fail"]
    for row in (rounded, noise, both):
        assert row["kl_low"] < row["kl"] < row["kl_high"] and row["kl_prompts"] == 30
        [again] = ask(settings, RECOMPUTE, row["reading_run_id"])
        assert again["kl"] == pytest.approx(row["kl"], rel=1e-3)


def find_full_kl(settings, run_id, model, other):
    """The divergence over the whole vocabulary and the change of the answers' likelihood, by plain torch."""
    import torch
    from transformers import AutoModelForCausalLM

    engines = [AutoModelForCausalLM.from_pretrained(one, dtype=torch.float32) for one in (model, other)]
    found = []
    for row in ask(settings, "from requests where run_id = ?", run_id):
        ids, tokens = torch.tensor(row["prompt_token_ids"]), row["option_tokens"]
        with torch.no_grad():
            p, q = (torch.log_softmax(one(ids[None]).logits[0, -tokens - 1 : -1], -1) for one in engines)
        own = ids[-tokens:, None]
        found.append([(p.exp() * (p - q)).sum(-1).mean(), (p.gather(1, own) - q.gather(1, own)).mean()])
    return [float(value) for value in torch.tensor(found).mean(0)]
