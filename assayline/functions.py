"""Functions that a spec names: `module:function` of the project, or a name that an installed package registers.

Finding one reads its module's file and runs none of it, so a broken or slow module cannot harm the process that asks.
"""

import importlib.metadata
import re
import sys
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from assayline.digests import digest_bytes
from assayline.errors import SpecError

REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
SCORERS, SOURCES = "assayline.scorers", "assayline.sources"
"""Groups of entry points in which packages register functions."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function and the code that defines it."""

    reference: str
    """`module:function`."""
    file: Path
    """The file of its module."""

    @property
    def digest(self) -> str:
        """Digest of that file's content: other code is another function. Raises SpecError."""
        try:
            return digest_bytes(self.file.read_bytes())
        except OSError as error:
            raise SpecError(f"{self.file}, which defines {self.reference}, cannot be read: {error}.") from None


def find_function(name: str, group: str) -> Function:
    """Find `module:function` in the working folder or among installed packages, or the function registered as `name`.

    Raises SpecError if there is none, or if several packages register the name.
    """
    reference = name if ":" in name else _find_registered(name, group)
    if not REFERENCE.fullmatch(reference):
        raise SpecError(
            f"{name!r} does not name a function. hint: write module:function, such as scoring:closeness for the "
            "function closeness in scoring.py."
        )
    module = reference.partition(":")[0]
    file = _find_file(module)
    if file is None:
        raise SpecError(
            f"There is no module {module!r} for the function {reference}. hint: put {module.split('.')[0]}.py in the "
            f"folder where you start the command ({Path.cwd()}), or install its package."
        )
    return Function(reference, file)


def _find_registered(name: str, group: str) -> str:
    entries = importlib.metadata.entry_points(group=group)
    by_reference = {entry.value: entry for entry in entries if entry.name == name}
    if len(by_reference) > 1:
        packages = ", ".join(sorted(entry.dist.name for entry in by_reference.values() if entry.dist))
        raise SpecError(
            f"Several packages register {name!r} in {group}: {packages}. hint: write one of "
            f"{', '.join(sorted(by_reference))}."
        )
    if not by_reference:
        known = ", ".join(sorted({entry.name for entry in entries})) or "none"
        raise SpecError(
            f"No installed package registers {name!r} in {group} (registered: {known}). hint: for a function of your "
            "own write module:function, such as scoring:closeness."
        )
    return next(iter(by_reference))


def _find_file(module: str) -> Path | None:
    """Find the file of a module without importing it or its packages."""
    found = None
    folders: list[str] | None = None
    parts = module.split(".")
    for depth in range(len(parts)):
        found = _find_spec(".".join(parts[: depth + 1]), folders)
        if found is None:
            return None
        folders = list(found.submodule_search_locations or [])
    origin = found.origin if found else None
    return Path(origin) if origin and Path(origin).is_file() else None


def _find_spec(name: str, folders: list[str] | None) -> ModuleSpec | None:
    """Find a module in its package's folders, or a top-level one in the working folder and then as Python does.

    An editable install is known to a finder of its own, not to the path."""
    if folders is None and (found := PathFinder.find_spec(name, [str(Path.cwd())])):
        return found
    specs = (finder.find_spec(name, folders) for finder in sys.meta_path)
    return next((found for found in specs if found), None)
