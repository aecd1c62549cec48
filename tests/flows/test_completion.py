"""`assayline --completion SHELL`: what a shell offers after some words."""

import shutil
import subprocess

import pytest

from assayline.flows import cli
from assayline.flows.cli.completion import SHELLS, list_options, write_script
from assayline.flows.cli.options import COMMANDS

BASH = shutil.which("bash")
ASK = """
eval "$SCRIPT"
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_assayline
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts() -> dict[str, str]:
    return {shell: write_script(shell) for shell in SHELLS}


@pytest.mark.skipif(BASH is None, reason="no bash here")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["eva"], ["evaluate"]),
        (["re"], ["report", "rebuild"]),
        (["--comp"], ["--completion"]),
        (["--completion", ""], ["bash", "zsh", "fish"]),
        (["evaluate", "--dr"], ["--dry-run"]),
        (["evaluate", "spec.yaml", "--re"], ["--resume"]),
        (["export", "last", "--format", "c"], ["csv"]),
        (["report", "--out", ""], [""]),  # files, by `-o default`
        (["score", "sp"], [""]),
    ],
)
def test_bash_completion_offers_commands_options_and_choices(scripts, words, offered):
    command = [str(BASH), "--norc", "-c", ASK, "bash", "assayline", *words]
    done = subprocess.run(command, env={"SCRIPT": scripts["bash"]}, capture_output=True, text=True, check=False)
    assert (done.stdout.splitlines(), done.stderr) == (offered, "")


def test_completion_of_zsh_reads_that_of_bash(scripts):
    assert scripts["zsh"].endswith(scripts["bash"])
    assert "bashcompinit" in scripts["zsh"]


@pytest.mark.parametrize("command", list(COMMANDS))
def test_fish_completion_has_every_command_and_option(scripts, command):
    assert f" -a {command} -d " in scripts["fish"]
    for action in list_options(command):
        for option in action.option_strings:
            if option.startswith("--"):
                assert f"'__fish_seen_subcommand_from {command}' -l {option[2:]} " in scripts["fish"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish here")
def test_fish_reads_its_script(scripts, tmp_path):
    (tmp_path / "assayline.fish").write_text(scripts["fish"])
    subprocess.run(["fish", "--no-execute", str(tmp_path / "assayline.fish")], check=True)


@pytest.mark.parametrize("words", [["--completion"], ["--completion", "tcsh"], ["--completion", "bash", "more"]])
def test_completion_of_another_shell_is_refused(words, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.run_words(words)
    assert caught.value.code == 2
    assert "give --completion a shell: bash, zsh, fish" in capsys.readouterr().err


def test_completion_is_printed_by_the_command(scripts, capsys):
    assert cli.run_words(["--completion", "bash"]) == 0
    assert capsys.readouterr().out == scripts["bash"]
