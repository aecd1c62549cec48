"""Specs by name, in this package and without a model: benchmarks, such as `@gsm8k`, and rubrics of judges."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assayline.errors import SpecError
from assayline.spec.core_yaml import load_yaml
from assayline.words import nearest

FOLDER = Path(__file__).parent / "benchmarks"
RUBRICS = Path(__file__).parent / "rubrics"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedBenchmark:
    """A benchmark that assayline has a spec for."""

    name: str
    measures: str
    license: str
    """License of the data."""
    prompts: int
    """Number of prompts, as its publishers state it."""
    spec: dict[str, Any]
    """The spec, without its model."""
    digest: str | None = None
    """`prompts_digest` of a run of all its prompts; None if it is not known."""
    release: str | None = None
    """Release of the package that its data come with."""
    hub_task: str | None = None
    """Task in the `eval.yaml` of its dataset on the hub; None if there is none, or it is not known."""

    @property
    def revision(self) -> str | None:
        """Commit of its dataset, or release of its package; None if its data are not pinned."""
        return self.spec["prompts"]["source"].get("revision") or self.release

    def describe_difference(self, rows: int, digest: str | None) -> str | None:
        """Describe how a run's prompts differ from the pinned ones; None if they do not, as far as that is known."""
        if rows != self.prompts:
            return f"The prompts are not those of @{self.name}: {rows:,} rows, and it has {self.prompts:,}."
        if self.digest not in (None, digest):
            return f"The prompts are not those of @{self.name}: their digest is {digest}, and not {self.digest}."
        return None

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


def list_rubrics() -> list[str]:
    """The names of the specs of judges, sorted."""
    return sorted(path.stem for path in RUBRICS.glob("*.yaml"))


def find_benchmark(name: str) -> NamedBenchmark:
    """The benchmark `@NAME` or `NAME`. Raises SpecError for an unknown name."""
    known = {benchmark.name: benchmark for benchmark in list_benchmarks()}
    if (wanted := name.removeprefix("@")) not in known:
        rubrics = list_rubrics()
        raise SpecError(
            f"Unknown benchmark {name}; {nearest(wanted, [*known, *rubrics])}. hint: list them with `assayline "
            f"list benchmarks`; rubrics of judges are {', '.join(f'@{rubric}' for rubric in rubrics)}."
        )
    return known[wanted]


def find_by_source(source: Mapping[str, Any]) -> NamedBenchmark | None:
    """The benchmark whose prompts come from this source of a spec, at any revision; None if there is none."""
    for benchmark in list_benchmarks():
        own = benchmark.spec["prompts"]["source"].items()
        if all(source.get(name) == value for name, value in own if name != "revision"):
            return benchmark
    return None


def read_named(name: str) -> dict[str, Any]:
    """The spec of the benchmark or rubric `@NAME`, as its file has it. Raises SpecError for an unknown name."""
    wanted = name.removeprefix("@")
    if wanted in list_rubrics():
        return {"name": wanted, **load_yaml((RUBRICS / f"{wanted}.yaml").read_text(encoding="utf-8"))}
    return {"name": wanted, **find_benchmark(name).spec}


def _read(path: Path) -> NamedBenchmark:
    value = load_yaml(path.read_text(encoding="utf-8"))
    return NamedBenchmark(name=path.stem, spec=value["spec"], **value["about"])
