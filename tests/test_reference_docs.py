"""The generated pages of docs/reference/ and the JSON schema of a spec agree with the code."""

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import agent_docs  # noqa: E402
import reference_docs  # noqa: E402
import spec_docs  # noqa: E402

import assayline.errors  # noqa: E402
from assayline.comparison import gate  # noqa: E402
from assayline.errors import Kind  # noqa: E402
from assayline.flows.cli.options import COMMANDS, import_command  # noqa: E402
from assayline.spec.evaluation import EvalSpec  # noqa: E402

SPECS = [path for path in sorted((ROOT / "examples").glob("*.yaml")) if path.stem not in ("skypilot", "suite")]


@pytest.mark.parametrize("name", ["cli.md", "settings.md"])
def test_reference_docs_are_current(name: str) -> None:
    page = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
    assert page == reference_docs.render()[name], "run python -m scripts.reference_docs"


def test_docs_for_coding_assistants_are_current() -> None:
    for name, text in agent_docs.render().items():
        assert (ROOT / name).read_text(encoding="utf-8") == text, "run python -m scripts.agent_docs"
        links = re.findall(r"\]\(([^)#:]+)", text)
        assert len(links) > 3 and all((ROOT / name).parent.joinpath(link).exists() for link in links)


def test_reference_docs_have_every_command_with_usage_and_exit_codes() -> None:
    text = reference_docs.render()["cli.md"]
    for command in COMMANDS:
        options = [option for action in import_command(command).PARSER._actions for option in action.option_strings]
        assert not [option for option in options if "_" in option], "options are --kebab-case, fields snake_case"
        _, section = text.split(f"## assayline {command}\n")
        section = section.split("\n## ")[0]
        assert f"\nassayline {command} " in section
        assert re.search(r"^Exit codes:\n\n- `0`: \w+", section, flags=re.MULTILINE), command
    assert "|  |" not in text, "an argument without an explanation"


def read_table(page: str, heading: str = "# ") -> dict[str, str]:
    """Return the rows of the tables below a heading that begins so, by the code in their first cell."""
    text = "\n" + (ROOT / "docs" / "reference" / page).read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|(.*)$", text.split(f"\n{heading}", 1)[1], flags=re.MULTILINE)
    assert len(dict(rows)) == len(rows)
    return dict(rows)


def test_exit_codes_of_all_errors_are_explained() -> None:
    rows = read_table("exit-codes.md")
    errors = {
        name: error.exit_code
        for name, error in {**vars(assayline.errors), **vars(gate)}.items()
        if isinstance(error, type) and issubclass(error, Exception) and "exit_code" in vars(error)
    }
    explained = {name: int(code) for code, row in rows.items() for name in re.findall(r"`(\w+Error)`", row)}
    assert explained == errors


def test_exit_codes_of_all_commands_are_explained() -> None:
    codes = re.findall(r"^- `(\d+)`: ", reference_docs.render()["cli.md"], flags=re.MULTILINE)
    assert set(codes) <= set(read_table("exit-codes.md"))


def test_error_kinds_of_the_code_are_explained() -> None:
    causes = read_table("error-kinds.md", "## Engines that died")
    assert set(causes) == set(Kind)
    explained = set(read_table("error-kinds.md")) - set(causes)
    assert set(_find_error_kinds()) - {"fake_error"} <= explained
    texts = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "assayline").rglob("*.py"))
    assert [kind for kind in explained if f'"{kind}"' not in texts] == []


def _find_error_kinds() -> Iterator[str]:
    """Strings and constants that the package passes to errors and rows as their kind."""
    modules = [ast.parse(file.read_text(encoding="utf-8")) for file in (ROOT / "assayline").rglob("*.py")]
    constants = {
        node.targets[0].id: node.value.value
        for module in modules
        for node in module.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.targets[0], ast.Name)
    }
    for module in modules:
        for value in _find_kind_values(module):
            kind = value.value if isinstance(value, ast.Constant) else constants.get(_name(value))
            if isinstance(kind, str) and re.fullmatch(r"[a-z]+(_[a-z]+)+", kind):
                yield kind


def _find_kind_values(module: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(module):
        if isinstance(node, ast.Call):
            yield from (keyword.value for keyword in node.keywords if keyword.arg in ("kind", "error_kind"))
            if re.search(r"(Error|Failure|unsent|_fail)$", _name(node.func)):
                yield from node.args
        elif isinstance(node, ast.FunctionDef):
            defaults = zip(reversed(node.args.args), reversed(node.args.defaults), strict=False)
            yield from (default for argument, default in defaults if argument.arg in ("kind", "error_kind"))
            if node.name == "_kind_of":
                yield from (part.value for part in ast.walk(node) if isinstance(part, ast.Return) and part.value)


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads(spec_docs.SCHEMA.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_schema_of_a_spec_is_current() -> None:
    text = spec_docs.SCHEMA.read_text(encoding="utf-8")
    assert text == spec_docs.render_schema(), "run python -m scripts.spec_docs"


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_schema_accepts_the_spec_of_an_example(path: Path, validator: jsonschema.Draft202012Validator) -> None:
    spec = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert [error.message for error in validator.iter_errors(spec)] == []


@pytest.mark.parametrize(
    "misspelt",
    [
        {"modle": "m"},
        {"prompts": {"source": {"kind": "file", "path": "p.jsonl"}, "limits": 3}},
        {"prompts": {"source": {"kind": "file", "paht": "p.jsonl"}}},
        {"engine": {"server": {"timeout": 1}}},
        {"scorers": [{"kind": "regex", "patern": "a"}]},
        {"scorers": ["exact_mach"]},
        {"load": {"arrival": {"kind": "poisson", "rate": 1.0}}},
    ],
    ids=str,
)
def test_schema_refuses_a_misspelt_key(misspelt: dict[str, Any], validator: jsonschema.Draft202012Validator) -> None:
    spec = {"model": "m", "prompts": {"source": {"kind": "file", "path": "p.jsonl"}}}
    assert validator.is_valid(spec)
    assert not validator.is_valid(spec | misspelt)


@pytest.mark.parametrize(
    "short",
    [
        {"scorers": ["numeric", {"kind": "regex", "pattern": "(.*)"}]},
        {"prompts": {"source": {"kind": "file", "path": "p.jsonl"}, "columns": {"images": "picture"}}},
    ],
    ids=str,
)
def test_schema_accepts_the_short_forms_that_the_models_accept(
    short: dict[str, Any], validator: jsonschema.Draft202012Validator
) -> None:
    spec = {"model": "m", "prompts": {"source": {"kind": "file", "path": "p.jsonl"}}} | short
    assert validator.is_valid(spec)
    EvalSpec.model_validate(spec)
