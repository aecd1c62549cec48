"""What a run asks of the place that it is in: calls of a folder, HTTP requests to a store, names that lists tell.

The calls are counted on the classes of the places, in each process: whoever asks has an object of its own.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from assayline.places.folder import Folder

METHODS = ("read", "read_many", "exists", "create", "note", "write", "names", "move", "remove")
TOLD = "names told"
LOGGED = re.compile(r'"(GET|PUT|HEAD|DELETE|POST) (/\S*) HTTP')


def count_calls(counts: Counter[str] | None = None) -> Counter[str]:
    """From now on what this process asks of folders is counted here, by method and folder."""
    counts = Counter() if counts is None else counts
    for method in METHODS:
        setattr(Folder, method, _counted(method, getattr(Folder, method), counts))
    return counts


def _counted(method: str, call: Callable[..., Any], counts: Counter[str]) -> Callable[..., Any]:
    def counted(self: Folder, key: str, *arguments: Any, **named: Any) -> Any:
        folder = _folder_of(key if method in ("names", "read_many") else key.rpartition("/")[0])
        if method == "read_many":
            arguments = (list(arguments[0]),)
            counts[f"read {folder}"] += len(arguments[0])
        else:
            counts[f"{method} {folder}"] += 1
        found = call(self, key, *arguments, **named)
        if method == "names":
            counts[f"{TOLD} {folder}"] += len(found)
        return found

    return counted


def _folder_of(key: str) -> str:
    return key or "the run's own"


def save_calls(counts: Counter[str], folder: Path) -> None:
    """For whoever adds up the calls of all processes."""
    folder.mkdir(exist_ok=True)
    (folder / f"{os.getpid()}.json").write_text(json.dumps(counts))


def read_calls(folder: Path) -> Counter[str]:
    """The calls of all processes that saved theirs."""
    return sum((Counter(json.loads(path.read_text())) for path in folder.glob("*.json")), Counter())


def total_calls(counts: Counter[str]) -> int:
    """Calls of every method."""
    return counts.total() - total_names(counts)


def total_names(counts: Counter[str]) -> int:
    """Names that lists told."""
    return sum(times for what, times in counts.items() if what.startswith(TOLD))


def read_log(log: Path, prefix: str) -> Counter[str]:
    """HTTP requests that a store's log has for one prefix, by method and folder."""
    return Counter(f"{method} {folder}" for method, folder in _read_lines(log.read_text(), prefix))


def _read_lines(text: str, prefix: str) -> Iterator[tuple[str, str]]:
    for method, target in LOGGED.findall(text):
        path, _, query = target.partition("?")
        if listed := re.search(rf"(?:^|&)prefix={re.escape(prefix).replace('/', '(?:/|%2F)')}(?:/|%2F)?([^&]*)", query):
            yield "LIST", _folder_of(listed[1].replace("%2F", "/").rstrip("/"))
        elif f"/{prefix}/" in path:
            yield method, _folder_of(path.partition(f"/{prefix}/")[2].rpartition("/")[0])
