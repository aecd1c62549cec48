"""Bisections: of a list, and of the fields of two specs, on fake and on real engines."""

import json
import shutil

import pytest
from run_kit import ENGINE_ARGS, ROOT, add_noise

from assayline.api import bisect
from assayline.errors import SpecError
from assayline.flows import cli
from assayline.run.delete import delete, plan_deletions
from assayline.spec.file import override_spec, parse_spec
from assayline.store.database import connect, read_rows
from assayline.store.manifest import list_manifests

pytestmark = pytest.mark.usefixtures("short_reports")
ROPE = {"rope_type": "default", "rope_theta": 100.0}


@pytest.fixture
def own_settings(settings, charts):
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    (settings.data_dir / "cache").symlink_to(charts)
    return settings


def ask(settings, query, *values):
    with connect(settings.database_path, 10) as connection:
        return read_rows(connection, query, *values)


def make_models(folder, good, count, bad_from, broken=()):
    """Copies of a model. From one on, a template adds a word, which the fake engine answers; the broken lack files."""
    models = [folder / f"model-{number}" for number in range(count)]
    for number, model in enumerate(models):
        shutil.copytree(good, model)
        template = (model / "chat_template.jinja").read_text() + (" now" if number >= bad_from else "")
        (model / "chat_template.jinja").write_text(f"{template}{{# {number} #}}")
        if number in broken:
            (model / "config.json").unlink()
    return [str(model) for model in models]


def trial(model, **changes):
    rows = [{"question": f"What is {n} + {n}?", "answer": f"{n}?"} for n in range(40)]
    source = {"kind": "inline", "rows": rows}
    data = {
        "name": "trial",
        "model": str(model),
        "prompts": {"source": source, "columns": {"target": "answer"}, "template": "{{ question }}"},
        "sampling": {"temperature": 0, "max_tokens": 4},
        "engine": {"backend": "fake"},
    }
    return parse_spec(data | changes)


def test_bisect_names_the_first_bad_model_of_a_list_and_skips_a_broken_one(modest_model, own_settings, tmp_path):
    models = make_models(tmp_path, modest_model, 8, bad_from=6, broken=[3])
    result = bisect(trial(modest_model), over={"model": models}, settings=own_settings)
    assert result.cause == f"model={models[6]}" and result.metric == "accuracy", result.headline
    measured = {row["candidate"][-1]: (row["runs"], row["is_bad"]) for row in result.candidates}
    low, high = (1, pytest.approx(0)), (1, pytest.approx(1))
    assert measured == {"0": low, "3": (0, None), "4": low, "5": low, "6": high, "7": high}
    skipped = {row["candidate"][-1]: row["skipped"] for row in result.candidates if row["skipped"]}
    assert [*skipped] == ["3"] and "no config.json" in skipped["3"]
    [verdict] = ask(own_settings, "from verdict")
    assert (verdict["limit_on"], verdict["verdict"], verdict["words"]) == ("bisection", "fail", result.headline)
    runs = len(list_manifests(own_settings.data_dir / "runs"))
    assert runs == 5, "one of each candidate"
    deletions = plan_deletions(own_settings, [result.bisection_id])
    assert len(deletions[0].run_ids) == runs
    delete(own_settings, deletions)
    assert not list_manifests(own_settings.data_dir / "runs")


def test_bisect_names_the_field_of_two_specs_and_the_method_that_it_keeps(modest_model, own_settings, tmp_path):
    good, bad = make_models(tmp_path, modest_model, 2, bad_from=1)
    changes = {"model": bad, "sampling.max_tokens": 6, "sampling.top_p": 0.5, "engine.max_concurrency": 7}
    changes |= {"engine.args.max_num_seqs": 3, "prompts.limit": 20}
    result = bisect(trial(good), override_spec(trial(good), changes), settings=own_settings)
    assert result.cause == "model"
    assert "kept as in the good spec: prompts.limit." in result.headline
    assert sum(row["runs"] for row in result.candidates) <= 9


@pytest.mark.parametrize(
    ("metric", "verdict", "words"),
    [("accuracy", "inconclusive", "would be found with 80% power"), ("kl", "pass", "do not differ beyond the limit")],
)
def test_bisect_ends_without_a_cause_if_the_ends_do_not_differ(metric, verdict, words, modest_model, own_settings):
    spec = trial(modest_model)
    result = bisect(spec, override_spec(spec, {"sampling.top_p": 0.5}), metric=metric, settings=own_settings)
    assert result.cause is None and words in result.headline, result.headline
    assert [row["verdict"] for row in ask(own_settings, "from verdict")] == [verdict]


def test_bisect_command_prints_a_plan_and_a_table_and_ends_with_its_code(
    modest_model, own_settings, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("ASSAYLINE_DATA_DIR", str(own_settings.data_dir))
    models = make_models(tmp_path, modest_model, 4, bad_from=2, broken=[1])
    good, bad, listed = tmp_path / "good.yaml", tmp_path / "bad.yaml", tmp_path / "models.txt"
    good.write_text(trial(models[0]).model_dump_json(exclude_defaults=True))
    bad.write_text(trial(models[0], sampling={"temperature": 0}).model_dump_json(exclude_defaults=True))
    listed.write_text("# oldest first\n" + "\n".join(models))
    assert cli.run("bisect", [str(good), str(bad), "--dry-run"]) == 0
    assert "One of 1, by kl or accuracy or output_tokens_per_s in at most 6 runs" in capsys.readouterr().out
    words = [str(good), "--over", f"model={listed}", "--metric", "accuracy"]
    assert cli.run("bisect", [*words, "--dry-run"]) == 0
    assert f"  model={models[3]}\n" in capsys.readouterr().out
    assert not (own_settings.data_dir / "runs").exists()
    assert cli.run("bisect", words) == 4
    printed = capsys.readouterr().out
    assert f"Not decided. One of 2: model={models[1]}; model={models[2]} did it with a probability of" in printed
    assert "no config.json" in printed


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({}, "pass two specs"),
        ({"over": {"model": ["a"]}}, "needs 2 to 256 values"),
        ({"over": {"model": ["a", "a"]}}, "all different"),
        ({"bad": {"prompts.limit": 3}}, "only the method differs: prompts.limit."),
        ({"bad": {"name": "other"}}, "differ in 0 fields"),
        ({"bad": {"sampling.top_p": 0.5}, "metric": "acuracy"}, "did you mean 'accuracy'"),
        ({"bad": {"sampling.top_p": 0.5}, "confidence": 2}, "between 0.5 and 1"),
        ({"bad": {"sampling.top_p": 0.5}, "max_runs": 1}, "at least 2"),
    ],
)
def test_bisect_refuses_what_cannot_be_bisected(asked, words, modest_model, settings):
    spec = trial(modest_model)
    given = asked | ({"bad": override_spec(spec, asked["bad"])} if "bad" in asked else {})
    with pytest.raises(SpecError, match=words):
        bisect(spec, **given, settings=settings)
    assert not (settings.data_dir / "runs").exists()


@pytest.mark.rare
@pytest.mark.vllm
def test_bisect_finds_noisy_checkpoints_and_a_field_with_real_engines(tiny_model, own_settings, tmp_path):
    """Eight checkpoints, with 3% of noise in their weights from the sixth on; six fields: rope_theta did it."""
    rows = [json.loads(line) for line in (ROOT / "examples" / "arithmetic.jsonl").read_text().splitlines()][:30]
    spec = parse_spec({
        "name": "sums",
        "model": str(tiny_model),
        "prompts": {"source": {"kind": "inline", "rows": rows}, "template": "{{ question }}"},
        "sampling": {"temperature": 1, "max_tokens": 24, "ignore_eos": True, "seed": 1},
        "engine": {"args": {**ENGINE_ARGS, "max_num_batched_tokens": 256, "enable_chunked_prefill": True}},
    })  # fmt: skip
    clean = [shutil.copytree(tiny_model, tmp_path / f"step-{number}") for number in range(5)]
    for number, model in enumerate(clean):
        (model / "generation_config.json").write_text(json.dumps({"step": number}))
    noisy = [add_noise(tiny_model, tmp_path / f"step-{number}", 0.03) for number in (5, 6, 7)]
    (noisy[1] / "config.json").unlink()
    result = bisect(spec, over={"model": [str(model) for model in clean + noisy]}, settings=own_settings)
    assert (result.cause, result.metric) == (f"model={noisy[0]}", "kl"), result.headline
    changes = {
        "engine.args.hf_overrides": {"rope_parameters": ROPE},
        "engine.args.max_num_seqs": 16,
        "sampling.top_k": 5,
    }
    changes |= {"engine.max_concurrency": 5, "engine.args.enable_prefix_caching": False, "engine.args.seed": 3}
    result = bisect(spec, override_spec(spec, changes), settings=own_settings)
    assert (result.cause, result.metric) == ("engine.args.hf_overrides", "kl"), result.headline
