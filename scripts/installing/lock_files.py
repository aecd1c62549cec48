"""The files in locks/: names, versions, hashes."""

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "locks"
GROUPS = {"cpu": ("torch-cpu", "cpu"), "cuda": ("cuda",), "dev": ("dev",), "uv": ("uv",)}
"""What belongs to a target. torch's CPU build is a lock of its own, as it can have no hash."""


@dataclass(frozen=True)
class Pin:
    """One package of a lock."""

    name: str
    version: str
    hashes: tuple[str, ...]

    def __str__(self) -> str:
        """As pip and uv read it."""
        return " ".join([f"{self.name}=={self.version}", *(f"--hash={digest}" for digest in self.hashes)])


def lock_path(name: str) -> Path:
    """The file of one lock."""
    return FOLDER / f"{name}.txt"


def read_pins(*groups: str) -> list[Pin]:
    """The packages of these groups."""
    paths = [lock_path(name) for group in groups for name in GROUPS[group]]
    return [pin for path in paths for pin in parse_pins(path.read_text(encoding="utf-8"))]


def parse_pins(text: str) -> list[Pin]:
    """The packages of a lock's text."""
    lines = (line for line in text.replace("\\\n", " ").splitlines() if not line.startswith("#"))
    pins = []
    for line in filter(str.strip, lines):
        requirement, *options = line.split()
        name, _, version = requirement.partition("==")
        pins.append(Pin(name, version, tuple(option.removeprefix("--hash=") for option in options)))
    return pins


def normalize(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()
