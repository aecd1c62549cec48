"""The command: what is to be done, what it costs, and how it ended."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from installing.environment import ROOT, Environment, hold
from installing.failures import SetupFailure, explain
from installing.installers import Installer, bring_uv, find_uv, make_environment
from installing.known_versions import describe_versions
from installing.lock_files import read_pins
from installing.machine import cache_folder, driver_answers, find_problems
from installing.wheels import check_folder, fetch

INTERRUPTED = 130
SIZES_GB = {"cpu": 3, "cuda": 10, "dev": 0.4}


def main(arguments: Sequence[str]) -> int:
    """Exit code of the command; what went wrong is said on stderr."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda number, _: sys.exit(128 + number))
    options = parse_arguments(arguments)
    try:
        if options.check:
            print(describe_versions(Environment(ROOT / ".venv").python))
        elif options.action == "wheels":
            fetch(options.wheels or ROOT / "wheels", options.target or guess_target(), options.python)
        else:
            set_up(options.dev, options.wheels, options.target)
    except SetupFailure as failure:
        print(f"{options.action}: {failure}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{options.action}: {explain(str(error), 'writing', 1)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\n{options.action}: interrupted; the same command resumes with what it has fetched", file=sys.stderr)
        return INTERRUPTED
    return 0


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """The options; an empty one counts as not given, since make passes them so."""
    parser = argparse.ArgumentParser(prog="scripts/setup.py", description="Makes .venv from the lock files.")
    parser.add_argument("action", nargs="?", choices=["setup", "wheels"], default="setup")
    parser.add_argument("--check", action="store_true", help="only say which vLLM is installed and which ones work")
    parser.add_argument("--dev", action="store_true", help="with what tests and linters need")
    parser.add_argument("--wheels", help="folder of wheels: the only source of `setup`, what `wheels` fills")
    parser.add_argument(
        "--target",
        choices=["cpu", "cuda", ""],
        help="for which vLLM: by default the machine's, which an image has yet to meet",
    )
    parser.add_argument("--python", help="for which Python: 3.11, 3.12 or 3.13; by default the one that runs this")
    options = parser.parse_args(arguments)
    options.wheels = Path(options.wheels).expanduser().resolve() if options.wheels else None
    options.python = options.python or f"{sys.version_info[0]}.{sys.version_info[1]}"
    return options


def guess_target() -> str:
    """What this machine wants."""
    return "cuda" if driver_answers() else "cpu"


def set_up(dev: bool, wheels: Path | None, target: str | None = None) -> None:
    """Makes .venv what it should be, if it is not."""
    environment = Environment(ROOT / ".venv")
    groups = [target or guess_target(), *(["dev"] if dev else [])]
    if environment.is_ready(groups):
        return
    with hold(ROOT / ".cache" / "setup.lock", "setup") as held:
        if not environment.is_ready(groups):  # another one may have done it meanwhile
            install(environment, groups, wheels, held)


def install(environment: Environment, groups: list[str], wheels: Path | None, held: int) -> None:
    """Installs the groups that are missing, each wholly or not at all."""
    started = time.monotonic()
    damage = environment.find_damage(groups)
    missing = groups if damage else environment.missing(groups)
    first = bool(damage) or not environment.python.exists()
    if first:
        for problem in find_problems(groups[0], environment.folder, cache_folder(os.environ)):
            raise SetupFailure(problem)
    if wheels:
        check_folder(wheels, [*missing, *(["uv"] if first and not find_uv() else [])])
    print(f"setup: {announce(missing, wheels)}", flush=True)
    environment.begin()
    if damage:
        print(f"setup: {damage}; making .venv anew", flush=True)
        environment.empty()
    if first:
        make_environment(environment, [held])
    environment.end()
    beside = environment.python.parent / "uv"
    uv = find_uv() or (beside if beside.exists() else bring_uv(environment, wheels, [held]))
    installer = Installer(environment, wheels, uv, [held])
    for group in missing:
        environment.begin()
        installer.has_changed = False
        try:
            installer.install(group)
            if group != "dev":
                installer.install_project()
        except (SetupFailure, KeyboardInterrupt):
            if not installer.has_changed:
                environment.end()
            raise
        environment.end(group)
    print(f"setup: done after {time.monotonic() - started:.0f} s", flush=True)


def announce(groups: list[str], wheels: Path | None) -> str:
    """What comes now and how long it takes."""
    count = len(read_pins(*groups))
    size = sum(SIZES_GB[group] for group in groups)
    duration = "two minutes" if "cuda" in groups else "half a minute"
    source, condition = (f" from {wheels}", "") if wheels else ("", " with a good connection")
    return f"installing {count} packages{source}; about {duration}{condition}, {size:.1f} GB of disk"
