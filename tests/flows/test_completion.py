"""`assayline --completion SHELL`: what a shell offers after some words."""

import shutil
import subprocess

import pytest

from assayline.flows import cli

BASH = shutil.which("bash")
ASK = """
source ./script
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_shtab_assayline
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.skipif(BASH is None, reason="no bash here")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["eva"], ["evaluate"]),
        (["repo"], ["report"]),
        (["db", "re"], ["rebuild"]),
        (["--comp"], ["--completion"]),
        (["--completion", "b"], ["bash"]),
        (["evaluate", "--dr"], ["--dry-run"]),
        (["evaluate", "sp"], ["spec.yaml"]),
        (["evaluate", "spec.yaml", "--re"], ["--resume"]),
        (["baseline", "un"], ["unpin"]),
        (["baseline", "pin", "--no"], ["--note"]),
        (["export", "last", "--format", "l"], ["lm-eval"]),
        (["export", "last", "--output", "sp"], ["spec.yaml"]),
        (["doctor", "sp"], [""]),
    ],
)
def test_bash_completion_offers_commands_options_choices_and_files(words, offered, tmp_path, capsys):
    assert cli.run_words(["--completion", "bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    (tmp_path / "spec.yaml").touch()
    command = [str(BASH), "--norc", "-c", ASK, "bash", "assayline", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout.splitlines(), done.stderr) == (offered, "")


@pytest.mark.parametrize("shell", ["zsh", "fish", "tcsh"])
def test_completion_has_commands_and_options_for_other_shells(shell, capsys):
    assert cli.run_words(["--completion", shell]) == 0
    script = capsys.readouterr().out
    assert "rebuild" in script and "set-aside" in script
    if found := shutil.which(shell):
        subprocess.run([found, "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize("words", [["--completion"], ["--completion", "cmd"], ["--completion", "bash", "more"]])
def test_completion_of_another_shell_is_refused(words, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.run_words(words)
    assert caught.value.code == 2
    assert "hint: pass one of bash, zsh, tcsh, fish" in capsys.readouterr().err
