"""Settings: `.env.example` tells the truth, and a wrong one is named."""

import ast
import os
import re
from pathlib import Path

import pytest
from run_kit import ROOT

from assayline.errors import SpecError
from assayline.settings import Settings, list_unknown_variables, load_settings
from assayline.spec.evaluation import EvalSpec  # noqa: F401 - defines every part
from assayline.spec.part import SpecPart

EXAMPLE = (ROOT / ".env.example").read_text()


@pytest.fixture(autouse=True)
def bare_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings but those of the test, in a folder without `.env`."""
    for name in [name for name in os.environ if name.startswith("ASSAYLINE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_the_example_lists_every_setting_and_no_other():
    listed = re.findall(r"^# (ASSAYLINE_\w+)=", EXAMPLE, re.M)
    assert sorted(listed) == sorted(f"ASSAYLINE_{name.upper()}" for name in Settings.model_fields)


def test_the_example_uncommented_is_the_default():
    default = load_settings()
    Path(".env").write_text(re.sub(r"^# (?=ASSAYLINE_)", "", EXAMPLE, flags=re.M))
    listed = load_settings()
    assert listed.database_path == default.database_path
    assert listed.model_dump(exclude={"database"}) == default.model_dump(exclude={"database"})


def test_every_setting_and_spec_field_has_a_reader():
    """A field is read as an attribute, as text (`getattr`, columns of tables) or in SQL (`spec_json`)."""
    sources = [path.read_text() for part in ("assayline", "flows", "tasks") for path in (ROOT / part).rglob("*.py")]
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
    read |= {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    scorers = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("score_")]
    read |= {one.arg for node in scorers for one in (*node.args.args, *node.args.kwonlyargs)}  # given by name
    sql = "".join(re.sub("--.*", "", path.read_text()) for path in (ROOT / "sql").rglob("*.sql"))
    read |= set(re.findall(r"\w+", sql.replace("\ncomment on ", "--")))
    parts = [Settings]
    for part in parts:
        parts += part.__subclasses__() if part is not Settings else SpecPart.__subclasses__()
    fields = {f"{part.__name__}.{field}" for part in parts for field in part.model_fields}
    assert len(fields) > 150
    assert [field for field in sorted(fields) if field.partition(".")[2] not in read] == []


def test_the_environment_wins_over_the_file(monkeypatch):
    Path(".env").write_text("ASSAYLINE_FLUSH_ROWS=7\nASSAYLINE_DATA_DIR=elsewhere\n")
    monkeypatch.setenv("ASSAYLINE_FLUSH_ROWS", "8")
    settings = load_settings()
    assert (settings.flush_rows, settings.data_dir) == (8, Path("elsewhere"))
    assert settings.database_path == Path("elsewhere/assayline.duckdb")
    assert settings.run_dir("r") == Path("elsewhere/runs/r")


@pytest.mark.parametrize(("name", "value"), [("FLUSH_ROWS", "many"), ("FLUSH_ROWS", "0"), ("DATABASE_WAIT_S", "-1")])
def test_a_wrong_value_names_the_variable_and_the_value(monkeypatch, name, value):
    monkeypatch.setenv(f"ASSAYLINE_{name}", value)
    with pytest.raises(SpecError, match=f"Invalid setting ASSAYLINE_{name}: given '{value}'; .*hint: see .env.example"):
        load_settings()


def test_unknown_setting_is_reported_with_the_nearest_name(monkeypatch):
    assert list_unknown_variables() == []
    monkeypatch.setenv("ASSAYLINE_DATA_DIRR", "x")
    monkeypatch.setenv("ASSAYLINE_DEVICE_LOCKS", "the locks of an engine's device")
    monkeypatch.setenv("assayline_bar", "false")
    Path(".env").write_text("ASSAYLINE_ZZZ=1\nOTHER=2\n")
    assert list_unknown_variables() == [
        "ASSAYLINE_DATA_DIRR is not a setting and is ignored: did you mean ASSAYLINE_DATA_DIR?",
        "ASSAYLINE_ZZZ is not a setting and is ignored: see .env.example for all settings.",
    ]


def test_the_token_is_not_shown(monkeypatch):
    monkeypatch.setenv("ASSAYLINE_HF_TOKEN", "hf_secret")
    settings = load_settings()
    assert settings.hf_token is not None and settings.hf_token.get_secret_value() == "hf_secret"
    assert "hf_secret" not in repr(settings) + str(settings.model_dump())
