"""The notebook's queries and charts, without marimo; and the notebook itself if marimo is installed."""

import importlib.util
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from assayline.settings import Settings
from examples.two_weeks import NIGHTS

pytestmark = pytest.mark.slow
NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "notebook.py"


class App(SimpleNamespace):
    """marimo's app, as far as the notebook needs it to be imported."""

    setup = nullcontext()
    function = cell = staticmethod(lambda function: function)


@pytest.fixture
def database(weeks: Settings) -> Path:
    return weeks.database_path


def load_notebook() -> ModuleType:
    found = importlib.util.spec_from_file_location("notebook", NOTEBOOK)
    assert found and found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def values_of(chart: dict[str, Any]) -> list[dict[str, Any]]:
    (rows,) = chart["datasets"].values()
    return rows


def test_notebook_plots_runs_with_their_intervals(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "marimo", SimpleNamespace(App=App))
    notebook = load_notebook()
    accuracy = values_of(notebook.plot_accuracy(database).to_dict())
    assert [row["name"] for row in accuracy] == ["nightly", "nightly", "thinking"]
    assert all(row["accuracy_low"] < row["accuracy"] < row["accuracy_high"] for row in accuracy)
    throughput = values_of(notebook.plot_throughput(database).to_dict())
    assert len(throughput) == len(NIGHTS) and all(row["e2e_p50_s"] > 0 for row in throughput)
    cost = values_of(notebook.plot_cost(database).to_dict())
    assert [row["model"].rpartition("-")[2] for row in cost] == ["one", "two", "four"]
    assert {row["runs"] for row in cost} == {"three-models, EUR"}
    assert all(row["cost_low"] < row["cost"] < row["cost_high"] for row in cost)


def test_notebook_runs_in_marimo(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("marimo")
    monkeypatch.setenv("ASSAYLINE_DATABASE", str(database))
    monkeypatch.setattr(sys, "argv", ["notebook.py"])
    outputs, _ = load_notebook().app.run()
    assert sum(type(output).__name__.endswith("Chart") for output in outputs) == 3
