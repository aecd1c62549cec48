"""Benchmarks by name: `@gsm8k` is a spec in this package, without a model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from assayline.errors import SpecError
from assayline.words import nearest

FOLDER = Path(__file__).parent / "benchmarks"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedBenchmark:
    """A benchmark that assayline has a spec for."""

    name: str
    measures: str
    license: str
    """License of the data."""
    prompts: int
    """Number of prompts, as its publishers state it."""
    harness_task: str
    """Task of lm-evaluation-harness over the same data."""
    tested_on: str
    """Data that its spec has been tested on: the published data, or rows or tasks like them."""
    spec: dict[str, Any]
    """The spec, without its model."""

    @property
    def data(self) -> str:
        """Where its prompts come from: a dataset of the hub, the harness, or a package."""
        source = self.spec["prompts"]["source"]
        return {
            "hub": str(source.get("dataset")),
            "lm_eval": "lm-eval",
            "python": f"{str(source.get('function')).rpartition('.')[2].partition(':')[0].replace('_', '-')} (package)",
        }[source["kind"]]


def list_benchmarks() -> list[NamedBenchmark]:
    """Every named benchmark, sorted by name."""
    return [_read(path) for path in sorted(FOLDER.glob("*.yaml"))]


def read_named(name: str) -> dict[str, Any]:
    """The spec of `@NAME`, as its file has it. Raises SpecError for an unknown name."""
    known = {benchmark.name: benchmark for benchmark in list_benchmarks()}
    if (wanted := name.removeprefix("@")) not in known:
        raise SpecError(
            f"Unknown benchmark {name}; {nearest(wanted, sorted(known))}. hint: list them with `assayline benchmarks`."
        )
    return {"name": wanted, **known[wanted].spec}


def _read(path: Path) -> NamedBenchmark:
    value = yaml.safe_load(path.read_text(encoding="utf-8"))
    return NamedBenchmark(name=path.stem, spec=value["spec"], **value["about"])
