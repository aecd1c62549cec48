"""Runs that are hurt, on the fake engine: 0 requests lost, 0 twice.

`make test` does it some times, `make test-faults` two hundred times on one machine and two hundred on a Ray cluster.
Each prints a table by kind of fault, and a last line of JSON.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fault_kit import LOCAL_KINDS, NODES, RAY_KINDS, Nodes, Round, print_table, run_rounds

pytestmark = pytest.mark.slow


@pytest.fixture
def hurt(
    request: pytest.FixtureRequest, tmp_path: Path, modest_model: Path, record_property: Any
) -> Callable[..., None]:
    """Hurts runs and checks what came of it."""
    seed = int(request.config.getoption("--kill-seed"))
    dice = random.Random(seed)

    def run(usual: int, kinds: tuple[str, ...], nodes: Nodes | None = None) -> None:
        wanted = int(request.config.getoption("--faults") or usual)
        outcomes = run_rounds(
            wanted, kinds, lambda number: Round(tmp_path / f"round-{number}", modest_model, dice, nodes)
        )
        totals = print_table(outcomes, seed)
        for name, value in totals.items():
            record_property(name, value)
        assert (totals["lost"], totals["twice"]) == (0, 0)
        assert totals["faults"] > 0

    return run


def test_faults_on_one_machine_cost_no_request(hurt):
    hurt(5, LOCAL_KINDS)


@pytest.mark.ray
@pytest.mark.rare
def test_faults_of_a_ray_cluster_cost_no_request(hurt, tmp_path):
    pytest.importorskip("ray")
    nodes = Nodes(tmp_path, tmp_path / "cluster.log")
    try:
        while len(nodes.alive) < NODES:
            nodes.add()
        hurt(4, RAY_KINDS, nodes)
    finally:
        nodes.close()
