"""The scorer `code`: whether a Python program made of an answer and its tests runs to its end, in a sandbox.

The sandbox is bubblewrap: new namespaces without a network, a file system of nothing but a read-only Python (no
installed packages) and a small empty `/tmp`. A small parent runs the program in a child, under a filter of system calls
that forbids processes. Time, memory and output are limited. Threads work, as far as memory allows.

The parent's exit code is the verdict, which the program can neither read nor change. Program and tests share a process,
so a program that is written to deceive can patch what its tests call, or imitate its own end.
"""

import math
import os
import resource
import shutil
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment

from assayline.scorers import Score
from assayline.scorers.blocks import extract_code, list_names

MOST_OUTPUT_BYTES = 2**20
MOST_MEMORY_BYTES = 2**30
MOST_FILE_BYTES = 2**24
"""Of `/tmp`, and of each file in it."""
MOST_OPEN_FILES = 64
SHOWN_CHARS = 300


def score_code(answer: str, target: str | None, row: dict[str, Any], program: str, timeout_s: float) -> Score:
    """Return 1 if the program runs to its end, with the answer's code and, if not, the error.

    `program` is a Jinja2 template over the columns of `row`, `target`, `answer` and `code`. Raises PromptError or
    jinja2.TemplateError if it cannot be rendered.
    """
    template = ImmutableSandboxedEnvironment(keep_trailing_newline=True).from_string(program)
    values = {**row, "target": target or "", "answer": answer}
    code = extract_code(answer, list_names(template.render({**values, "answer": "", "code": ""})))
    failure = run_program(template.render({**values, "code": code}), timeout_s)
    return Score(float(failure is None), code, failure or "ran to its end")


def run_program(text: str, timeout_s: float) -> str | None:
    """Run a Python program in the sandbox. Returns None if it ran to its end, else what stopped it."""
    seconds = math.ceil(timeout_s)
    limits = [
        (resource.RLIMIT_CPU, seconds + 1),
        (resource.RLIMIT_DATA, MOST_MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, MOST_FILE_BYTES),
        (resource.RLIMIT_NOFILE, MOST_OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ]
    child = subprocess.Popen(
        [
            BUBBLEWRAP,
            *_sandbox(),
            _PYTHON,
            "-u",
            "-I",
            "-S",
            "-c",
            f"limits, rules = {limits}, {make_filter()!r}{_START}",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    is_late = threading.Event()

    def stop() -> None:
        is_late.set()
        child.kill()

    clock = threading.Timer(timeout_s, stop)
    clock.start()
    output = b""
    try:
        _feed(child, text)
        assert child.stdout is not None
        while got := os.read(child.stdout.fileno(), 2**16):
            output += got
            if len(output) > MOST_OUTPUT_BYTES:
                return f"printed more than {MOST_OUTPUT_BYTES // 2**20} MiB"
        child.wait()  # until the time is over
    finally:
        clock.cancel()
        child.kill()
        child.wait()
        if child.stdout:
            child.stdout.close()
    if is_late.is_set():
        return f"ran longer than {timeout_s:g} s"
    if child.returncode == 0:
        return None
    lines = output.decode(errors="replace").strip().splitlines()
    return (lines[-1][:SHOWN_CHARS] if lines else "") or "ended before its last line"


def _feed(child: subprocess.Popen[bytes], text: str) -> None:
    """Write the program, which its process reads at once."""
    assert child.stdin is not None
    try:
        child.stdin.write(text.encode("utf-8", "replace"))
        child.stdin.close()
    except BrokenPipeError:
        pass


def _sandbox() -> list[str]:
    """Arguments of bwrap, up to the command."""
    files = ["--ro-bind", "/usr", "/usr"]
    for name in ("/lib", "/lib64", "/bin"):
        path = Path(name)
        if path.is_symlink():
            files += ["--symlink", str(path.readlink()), name]
        elif path.is_dir():
            files += ["--ro-bind", name, name]
    if not sys.base_prefix.startswith("/usr"):
        files += ["--ro-bind", sys.base_prefix, sys.base_prefix]
    small = ["--size", str(MOST_FILE_BYTES), "--tmpfs", "/tmp"]
    return [
        *(
            "--unshare-all",
            "--as-pid-1",
            "--cap-drop",
            "ALL",
            "--die-with-parent",
            "--new-session",
            "--clearenv",
            "--hostname",
            "sandbox",
        ),
        *(*files, "--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev", *small, "--chdir", "/tmp"),
        *("--remount-ro", "/"),
    ]


_START = """
import ctypes, os, resource, struct, sys
text, rules = sys.stdin.read(), ctypes.create_string_buffer(rules)
control = ctypes.CDLL(None).prctl
control(4, 0)  # PR_SET_DUMPABLE: the child cannot open this process in /proc
hear, tell = os.pipe()
if child := os.fork():
    os.close(tell)
    os._exit(os.waitpid(child, 0)[1] != 0 or os.read(hear, 64) != b"end")
os.close(hear)
control(4, 1)
for limit, value in limits:
    resource.setrlimit(limit, (value, value))
if control(38, 1, 0, 0, 0) or control(22, 2, struct.pack("HP", len(rules) // 8, ctypes.addressof(rules))):
    sys.exit("the filter of system calls cannot be loaded")  # PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP
exec(compile(text, "program", "exec"), {"__name__": "__main__"})
sys.stdout.flush()
os.write(tell, b"end")
"""
"""Runs the program on standard input in a child, and exits with 0 if it ran to its end."""
_PYTHON = str(Path(sys.base_prefix) / "bin" / "python3")

_CALLS = {0xC000003E: (56, (57, 58)), 0xC00000B7: (220, ())}
"""By audit architecture (x86-64, AArch64): the number of clone, and those of fork and vfork."""
_CLONE3, _CLONE_THREAD = 435, 0x10000
_LOAD, _EQUALS, _AT_LEAST, _HAS_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _NOT_PERMITTED, _NOT_IMPLEMENTED = 0x7FFF0000, 0x00050001, 0x00050026


def make_filter() -> bytes:
    """A seccomp program that refuses to start a process and allows threads.

    clone3 is reported as missing, as its flags cannot be read by a filter; C libraries then call clone.
    """
    steps = [(_LOAD, 0, 0, 4)]  # the architecture
    for architecture, (clone, forks) in _CALLS.items():
        checks = [
            (_LOAD, 0, 0, 0),  # the number of the call
            (_AT_LEAST, 0, 1, 0x40000000),  # x32
            (_RETURN, 0, 0, _NOT_PERMITTED),
            *(step for call in forks for step in ((_EQUALS, 0, 1, call), (_RETURN, 0, 0, _NOT_PERMITTED))),
            (_EQUALS, 0, 1, _CLONE3),
            (_RETURN, 0, 0, _NOT_IMPLEMENTED),
            (_EQUALS, 1, 0, clone),
            (_RETURN, 0, 0, _ALLOW),
            (_LOAD, 0, 0, 16),  # the first argument: flags
            (_HAS_BITS, 0, 1, _CLONE_THREAD),
            (_RETURN, 0, 0, _ALLOW),
            (_RETURN, 0, 0, _NOT_PERMITTED),
        ]
        steps += [(_EQUALS, 0, len(checks), architecture), *checks]
    steps.append((_RETURN, 0, 0, _NOT_PERMITTED))
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def _find_bubblewrap() -> str:
    if (path := shutil.which("bwrap")) is None:
        raise RuntimeError("bwrap is not installed")
    command = [path, *_sandbox(), _PYTHON, "-I", "-S", "-c", "import ctypes"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"bwrap cannot make a sandbox: {' '.join(done.stderr.split())}")
    return path


BUBBLEWRAP = _find_bubblewrap()
"""Its path. Importing this module raises RuntimeError where there is no sandbox."""
