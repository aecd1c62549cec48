"""Engines of another environment: `engine.python`."""

import shlex
import stat
from pathlib import Path

import pytest
from run_kit import PATIENCE_S, fake_spec

from assayline import __version__
from assayline.digests import digest_package
from assayline.engines.process import HostProcess, HostSetup
from assayline.errors import SpecError
from assayline.settings import Settings
from assayline.spec.checks import check_arguments


def write_python(path: Path, *lines: str) -> str:
    """A program that stands for the Python of another environment."""
    path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def with_python(python: str, **args: object) -> object:
    return fake_spec(engine={"backend": "offline", "python": python, "args": args})


def test_the_engine_is_a_process_of_that_python(tmp_path):
    python = write_python(tmp_path / "python", f'echo "as $@" > {tmp_path}/told')
    setup = HostSetup.of(Settings(), with_python(python).engine, {}, tmp_path / "log")
    host = HostProcess(setup.env, setup.log_path, print, setup.launch)
    assert host.wait(PATIENCE_S)
    host.kill()
    assert (tmp_path / "told").read_text().startswith("as -m assayline.engines.host ")


def test_its_vllm_says_which_arguments_there_are(tmp_path):
    (tmp_path / "vllm" / "engine").mkdir(parents=True)
    (tmp_path / "vllm" / "engine" / "arg_utils.py").write_text("class EngineArgs:\n    dtype: str\n    newer: int\n")
    (tmp_path / "vllm" / "sampling_params.py").write_text("class SamplingParams:\n    temperature: float\n")
    same = f"echo {__version__}; echo {digest_package()}"
    python = write_python(tmp_path / "python", same, f"echo {shlex.quote(str(tmp_path / 'vllm'))}")
    check_arguments(with_python(python, newer=1))
    with pytest.raises(SpecError, match="vLLM has no such argument"):
        check_arguments(with_python(python, max_model_len=64))


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["echo; echo", "echo /vllm"], f"lacks assayline {__version__} with the same code. hint: install it there"),
        (["echo 0.0.1; echo other", "echo /vllm"], f"lacks assayline {__version__} with the same code (it has 0.0.1)."),
        ([f"echo {__version__}; echo other", "echo /vllm"], "with the same code"),
        ([f"echo {__version__}; echo {digest_package()}", "echo"], "lacks vLLM."),
        (["exit 3"], "lacks assayline"),
    ],
)
def test_an_environment_without_vllm_or_this_assayline_is_refused(lines, words, tmp_path):
    with pytest.raises(SpecError) as refused:
        check_arguments(with_python(write_python(tmp_path / "python", *lines)))
    assert words in str(refused.value)


def test_a_python_that_does_not_run_is_refused(tmp_path):
    with pytest.raises(SpecError, match=r"does not run: .*hint: give the path of a Python"):
        check_arguments(with_python(str(tmp_path / "none")))


@pytest.mark.parametrize("engine", [{"backend": "fake"}, {"backend": "server", "server": {"url": "http://h/v1"}}])
def test_an_engine_that_is_not_started_here_has_no_python(engine):
    with pytest.raises(SpecError, match="python is set, but no engine is started here"):
        fake_spec(engine={**engine, "python": "/bin/python"})
