"""`assayline init`: the project that it creates runs, and nothing is overwritten."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import flow_kit
import jsonschema
import pytest
import yaml
from run_kit import complete, query

from assayline.comparison.baselines import pin_baseline
from assayline.errors import SpecError
from assayline.flows.cli.init import DEFAULT_MODEL, FILES, SCHEMA_FILE, TEMPLATES, create_project
from assayline.settings import Settings
from assayline.spec.file import load_spec, parse_spec
from assayline.store.database import connect


def read_all(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_init_creates_a_project_whose_dry_run_passes(tmp_path, monkeypatch, modest_model):
    monkeypatch.chdir(tmp_path)
    done = flow_kit.run_here("init", "my project", "--model", modest_model)
    assert done.code == 0, done.err
    assert "  cd 'my project'\n  assayline doctor\n  assayline evaluate spec.yaml --dry-run\n" in done.out
    assert read_all(tmp_path / "my project").keys() == {*FILES, SCHEMA_FILE}
    monkeypatch.chdir(tmp_path / "my project")
    tried = flow_kit.run_here("evaluate", "spec.yaml", "--dry-run", "engine")
    assert tried.code == 0, tried.err
    assert "10 rows of" in tried.out and "(0 error rows)" in tried.out


def test_init_uses_a_small_model_of_the_hub_by_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = flow_kit.run_here("init", ".")
    assert "  cd " not in done.out and f"The model is {DEFAULT_MODEL}" in done.out
    assert load_spec("spec.yaml").model == DEFAULT_MODEL


@pytest.mark.parametrize("model", ["Qwen/Qwen3-0.6B", "a: b # c", '"', "1.5", "true-model", "none/such"])
def test_init_writes_any_model_as_text(tmp_path, model):
    create_project(tmp_path / "project", model)
    assert yaml.safe_load((tmp_path / "project" / "spec.yaml").read_text())["model"] == model


def test_init_names_a_schema_that_the_spec_meets(tmp_path):
    create_project(tmp_path, DEFAULT_MODEL)
    first, *_ = (tmp_path / "spec.yaml").read_text().splitlines()
    assert first == f"# yaml-language-server: $schema={SCHEMA_FILE}"
    schema = json.loads((tmp_path / SCHEMA_FILE).read_text())
    jsonschema.validate(yaml.safe_load((tmp_path / "spec.yaml").read_text()), schema)


def test_second_init_changes_nothing_and_lists_what_exists(tmp_path):
    create_project(tmp_path, DEFAULT_MODEL)
    (tmp_path / "spec.yaml").write_text("mine")
    before = read_all(tmp_path)
    done = flow_kit.run_here("init", tmp_path)
    assert done.code == 2 and not done.out
    assert f"error: {tmp_path} already has .assayline/spec.schema.json, " in done.err and "hint:" in done.err
    assert read_all(tmp_path) == before


def test_init_keeps_what_a_new_repository_has(tmp_path):
    (tmp_path / "README.md").write_text("mine")
    done = flow_kit.run_here("init", tmp_path)
    assert done.code == 0
    assert f"kept    {tmp_path / 'README.md'}\n" in done.out
    assert (tmp_path / "README.md").read_text() == "mine" and (tmp_path / "spec.yaml").exists()


def test_init_refuses_a_file_and_an_empty_model(tmp_path):
    (tmp_path / "file").write_text("mine")
    assert flow_kit.run_here("init", tmp_path / "file").err == (
        f"error: {tmp_path / 'file'} is not a folder. hint: choose another name.\n"
    )
    with pytest.raises(SpecError, match="is not a model"):
        create_project(tmp_path / "other", " ")
    assert not (tmp_path / "other").exists()


def test_scorer_of_a_project_passes_its_own_test(tmp_path):
    create_project(tmp_path, DEFAULT_MODEL)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "3 passed" in done.stdout, done.stdout + done.stderr


def test_run_of_a_project_is_scored_by_its_own_scorer(tmp_path, monkeypatch, modest_model):
    create_project(tmp_path, str(modest_model))
    monkeypatch.chdir(tmp_path)
    spec = load_spec("spec.yaml").model_dump(mode="json")
    spec["engine"] = {"backend": "fake"}  # answers with the last word of a question
    settings = Settings(data_dir=tmp_path / "data", lock_dir=tmp_path / "locks")
    complete(parse_spec(spec), settings)
    means = query(settings, "select scorer, samples, mean > 0 from accuracy order by ordinal")
    assert means == [("numeric", 10, False), ("closeness", 10, True)]


def test_settings_and_deployment_of_a_project_are_known_ones(tmp_path):
    create_project(tmp_path, DEFAULT_MODEL)
    names = re.findall(r"ASSAYLINE_(\w+)=", (tmp_path / ".env").read_text())
    assert names and {name.lower() for name in names} <= Settings.model_fields.keys()
    (deployment,) = yaml.safe_load((tmp_path / "prefect.yaml").read_text())["deployments"]
    assert deployment["entrypoint"] == "assayline.flows.nightly.nightly"
    assert (tmp_path / deployment["parameters"]["spec"]).is_file()


@pytest.mark.slow
def test_ci_jobs_of_a_project_keep_their_runs_and_end_with_the_gate(tmp_path, modest_model, charts):
    """The job of the CI file in a checkout, which it cleans; the runner's folder, with a run, is another one here."""
    project, shared = tmp_path / "my sums", tmp_path / "srv"
    create_project(project, str(modest_model))
    job = yaml.safe_load((project / ".github/workflows/evaluate.yml").read_text())["jobs"]["evaluate"]
    assert job["env"] == {"ASSAYLINE_DATA_DIR": "/srv/assayline/my-sums"}
    shutil.copytree(charts, shared / "cache")
    flow_kit.write_rows(project / "questions.jsonl", 40)  # the fake engine answers with the last word, the target
    spec = yaml.safe_load((project / "spec.yaml").read_text())
    spec |= {"engine": {"backend": "fake"}, "scorers": [{"kind": "exact_match"}]}
    settings = Settings(data_dir=shared, lock_dir=tmp_path / "locks")
    own = {"ASSAYLINE_DATA_DIR": str(shared), "ASSAYLINE_LOCK_DIR": str(settings.lock_dir)}
    environ = {**os.environ, **own, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def shell(line: str) -> int:
        return subprocess.run(["bash", "-e", "-c", line], cwd=project, env=environ, check=False).returncode

    spec["prompts"] |= {
        "source": {"kind": "file", "path": str(project / "questions.jsonl")},
        "template": "{{ question }}",
    }
    before = complete(parse_spec(spec), settings).run_id
    with connect(settings.database_path, 20) as connection:
        pin_baseline(connection, shared, "stable", before)
    spec["prompts"]["template"] = "{{ question }} what"
    flow_kit.write_spec(project / "spec.yaml", spec)
    checkout = "git init -q; git add .; git -c user.name=a -c user.email=a@b commit -qm new; git clean -ffdxq"
    assert shell(checkout) == 0
    assert [shell(step["run"]) for step in job["steps"] if "run" in step] == [0, 1, 0], "worse than the run before"
    assert (project / "report" / "report.html").exists()


def test_templates_are_all_used():
    assert {path.name for path in TEMPLATES.iterdir()} == set(FILES.values())
