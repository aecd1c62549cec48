"""Commands import only what they need, which saves seconds of every `--help`, dry run and start."""

import sys

import flow_kit

HEAVY = {
    "prefect", "pydantic", "pydantic_settings", "duckdb", "pyarrow", "transformers", "torch", "vllm", "yaml"
}  # fmt: skip

HELPS = f"""
import contextlib, sys
from assayline.flows import cli
from assayline.flows.cli.options import COMMANDS
for command in COMMANDS:
    with contextlib.suppress(SystemExit):
        cli.run(command, ["--help"])
print("imported:", sorted({HEAVY} & sys.modules.keys()))
"""


EVALUATE = """
import sys
from assayline.flows import cli
assert cli.run("evaluate", sys.argv[1:]) == 0
print("imported:", sorted({"prefect", "fastapi", "uvicorn", "vllm"} & sys.modules.keys()))
"""


def test_help_needs_next_to_nothing(command_env):
    helps = flow_kit.run_command([sys.executable, "-c", HELPS], command_env)
    assert helps.code == 0, helps.err
    assert helps.out.splitlines()[-1] == "imported: []"


def test_a_command_imports_no_prefect_and_its_prompts_and_scorers_may_import_torch(alone_env, fake_spec, tmp_path):
    (tmp_path / "own.py").write_text(
        "import torch\nfrom transformers import AutoModel\n"
        "def rows():\n    yield {'question': f'say {torch.tensor(4).item()}', 'answer': '4'}\n"
        "def score(answer, target, row):\n    return float(torch.tensor(answer == target) and AutoModel is not None)\n"
    )
    fake_spec["prompts"]["source"] = {"kind": "python", "function": "own:rows"}
    fake_spec["scorers"] = [{"kind": "python", "function": "own:score"}]
    spec = flow_kit.write_spec(tmp_path / "spec.yaml", fake_spec)
    environ = {**alone_env, "PYTHONPATH": str(tmp_path)}
    run = flow_kit.run_command([sys.executable, "-c", EVALUATE, str(spec)], environ)
    assert run.code == 0, run.err
    assert run.out.splitlines()[-1] == "imported: []"
    assert flow_kit.query(tmp_path / "data", "select mean from accuracy") == [1]


WITHOUT_CLIENT = """
import sys
sys.modules.update(dict.fromkeys(("av", "soxr", "tokenizers", "transformers", "torch", "vllm")))
from assayline.flows import cli
assert cli.run("demo", [sys.argv[1], "--import"]) == 0
sys.exit(cli.run("evaluate", sys.argv[2:]))
"""


def test_results_are_judged_without_the_packages_that_prepare_prompts(alone_env, fake_spec, tmp_path):
    spec = flow_kit.write_spec(tmp_path / "spec.yaml", fake_spec)
    run = flow_kit.run_command([sys.executable, "-c", WITHOUT_CLIENT, str(tmp_path / "demo"), str(spec)], alone_env)
    assert "The gate failed, as it should." in run.out
    assert run.code == 4 and "is not installed. hint: pip install 'assayline[client]'" in run.err
