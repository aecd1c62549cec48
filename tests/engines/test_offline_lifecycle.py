"""The life of an engine's processes: what they are given, and that nothing of them is left, however it ends."""

import os
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest
from engine_helpers import ARGS, Asker, Control, living_members, open_engine, start_python, wait_until_gone
from pydantic import SecretStr

from assayline.errors import EngineError
from assayline.settings import Settings

pytestmark = pytest.mark.vllm

PARENT = """
import itertools, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from engine_helpers import Asker, open_engine
model = Path(sys.argv[1])
engine, asker = open_engine(model, Path(sys.argv[2])), Asker(model)
endless = (asker.ask(max_tokens=None, ignore_eos=True) for _ in itertools.count())
for _ in engine.generate(endless):
    print(engine.host_pid, flush=True)
"""


def test_an_exception_leaves_no_process_and_the_host_had_its_token_from_the_start(
    tiny_model: Path, tmp_path: Path
) -> None:
    """Peers, row 10: their engines were alive 29 minutes later."""
    settings = Settings(hf_token=SecretStr("hf_of_a_test"))
    control, log_path = Control(), tmp_path / "logs" / "engine.log"
    asker = Asker(tiny_model)
    with pytest.raises(KeyError), closing(open_engine(tiny_model, log_path, control, settings=settings)) as engine:
        environment = Path(f"/proc/{engine.host_pid}/environ").read_bytes().split(b"\0")
        assert b"HF_TOKEN=hf_of_a_test" in environment and b"VLLM_ENABLE_V1_MULTIPROCESSING=0" in environment
        assert os.getsid(engine.host_pid) == engine.host_pid != os.getsid(0)
        assert living_members(engine.host_pid)
        for _ in engine.generate(asker.ask(max_tokens=99, ignore_eos=True) for _ in range(20)):
            raise KeyError
    assert living_members(engine.host_pid) == []
    engine.close()
    assert log_path.read_text().splitlines()[0].strip() in control.lines
    assert "hf_of_a_test" not in log_path.read_text()


def test_a_killed_host_is_an_error_with_the_signals_name_after_what_had_finished(
    tiny_model: Path, tmp_path: Path
) -> None:
    """Peers, row 9: plain `LLM` waits for ever."""
    asker, seen = Asker(tiny_model), []
    with closing(open_engine(tiny_model, tmp_path / "engine.log")) as engine:
        short = [asker.ask() for _ in range(5)]
        with pytest.raises(EngineError, match=r"died of signal SIGKILL.*engine\.log") as caught:
            for answer in engine.generate([*short, asker.ask(max_tokens=None, ignore_eos=True)]):
                seen.append(answer.text)
                if len(seen) == 5:
                    os.kill(engine.host_pid, signal.SIGKILL)
                    killed = time.monotonic()
        assert time.monotonic() - killed < 10
        assert seen == ["7"] * 5
        assert "Traceback" not in str(caught.value).splitlines()[0]
        with pytest.raises(EngineError, match="died of signal SIGKILL"):
            list(engine.generate([asker.ask()]))
    assert living_members(engine.host_pid) == []


def test_a_killed_parent_takes_its_engine_with_it(tiny_model: Path, tmp_path: Path) -> None:
    """Peers, row 10, and vLLM's own orphans: SIGKILL gives nobody a chance to clean up."""
    with start_python(PARENT, tiny_model, tmp_path / "engine.log", Path(__file__).parent) as parent:
        assert parent.stdout is not None
        host = int(parent.stdout.readline())
        assert living_members(host)
        parent.kill()
    assert wait_until_gone(host, 10)


def test_a_model_that_does_not_load_is_an_error_that_names_the_log(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(EngineError, match=r"(?s)The engine failed: .*Its whole log: .*engine\.log"):
        open_engine(empty, tmp_path / "engine.log", args=ARGS)
    assert "Traceback" in (tmp_path / "engine.log").read_text()
