"""For the processes that tests start: they find what users have, and not what is there for developers alone.

Python imports a module of this name at its start. vLLM, Prefect and transformers import these packages where they find
them, which takes seconds; an installation of `locks/cpu.txt` has none of them. And a new database is a copy of an empty
one where `EMPTY_DATABASE` says where that is: making its views takes two seconds.

`kill_at` kills a process, or its engines, before an event of its files; `KILL_AT` has the points for a command.
"""

import json
import os
import shutil
import signal
import sys
from contextlib import suppress
from fnmatch import fnmatch
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

for name in ("datasets", "ray", "statsmodels"):
    sys.modules.setdefault(name, None)
sys.modules.setdefault("prefect_dask", ModuleType("prefect_dask"))  # Prefect would warn that it cannot be imported


class WithoutPandas(PathFinder):
    """Finds everything else. Arrow takes a None among the modules for the package itself."""

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        return None if fullname == "pandas" else super().find_spec(fullname, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutPandas

EMPTY = os.environ.get("EMPTY_DATABASE")


def copy_databases(module):
    """Let `assayline.store.database` find an empty database if there is none yet."""
    connect_file = module._connect_file

    def copy_and_connect(path, read_only, config):
        if path.suffix == ".duckdb" and not path.exists() and not read_only:
            with suppress(OSError):
                shutil.copy(EMPTY, path)
        return connect_file(path, read_only, config)

    module._connect_file = copy_and_connect


class ChangeModule(MetaPathFinder, Loader):
    """Changes a module when it is imported."""

    def __init__(self, name, change):
        self.name, self.change = name, change

    def find_spec(self, fullname, path, target=None):
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        self.module, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec):
        return self.module.create_module(spec)

    def exec_module(self, module):
        self.module.exec_module(module)
        self.change(module)


if EMPTY and Path(EMPTY).exists():
    sys.meta_path.insert(0, ChangeModule("assayline.store.database", copy_databases))


def kill_at(folder, points):
    """Kill at points (victim, pattern, n): before the n-th file that matches is written, renamed or removed.

    A victim is `flow`, this process, or `engine`, the processes that it has started.
    """
    left = [list(point) for point in points]
    events = {"open": 0, "os.rename": 1, "os.remove": 0}

    def look(event, args):
        place = events.get(event)
        if place is None or (event == "open" and not args[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        path = str(args[place])
        for point in left if path.startswith(folder) else ():
            if fnmatch(path, point[1]):
                point[2] -= 1
                if point[2] == 0:
                    shoot(point[0])

    sys.addaudithook(look)


def shoot(victim):
    if victim == "flow":
        os.kill(os.getpid(), signal.SIGKILL)
    for children in Path("/proc/self/task").glob("*/children"):
        for child in children.read_text().split():
            os.kill(int(child), signal.SIGKILL)


if "KILL_AT" in os.environ and "evaluate" in sys.orig_argv:
    kill_at(os.environ["ASSAYLINE_DATA_DIR"], json.loads(os.environ["KILL_AT"]))
