"""What a leaderboard reads: of each task its models' scores, ranks, speeds and costs, and the compared pairs."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile

from assayline.comparison.queries import choose_pairing, read_overlaps, say_pairing
from assayline.errors import SpecError
from assayline.spec.criteria import GateSpec
from assayline.spec.identity import list_changes
from assayline.store.database import Connection, Row, read_rows
from assayline.store.kept import read_all_kept, read_kept
from assayline.words import count, nearest

SETTINGS = ("sampling", "chat", "output", "reasoning", "prompts")
"""Of a spec: what else than model and engine decides answers, as find_board holds it against other runs."""


@dataclass(frozen=True)
class Task:
    """One task: a prompt set as it was asked."""

    name: str
    cells: list[Row]
    """Rows of find_board, the best score first; with best_rank, worst_rank and is_winner of rank_board, None where a
    score is not compared, with the columns of speed and cost, and with `note`: why it is not compared, in words."""
    pairs: list[Row]
    """Rows of compare_board."""

    @cached_property
    def compared(self) -> list[Row]:
        """The cells that are held against each other."""
        return [cell for cell in self.cells if cell["obstacle"] is None]

    @property
    def leaders(self) -> list[Row]:
        """The models that none is better than: of one, it is the winner only if is_winner says so."""
        return [cell for cell in self.compared if cell["best_rank"] == 1]

    def find_model(self, run_id: str) -> str:
        """The model whose run it is."""
        return next(str(cell["model"]) for cell in self.cells if cell["run_id"] == run_id)


@dataclass(frozen=True)
class BoardRows:
    """A leaderboard's rows."""

    names: tuple[str, ...]
    """What it was asked for: empty for everything."""
    tasks: list[Task]
    suffix: str = ""
    """What the names of all models end with, such as ", dtype float32", and is left out of each."""

    @property
    def models(self) -> list[str]:
        """All of them, by name."""
        return sorted({cell["model"] for task in self.tasks for cell in task.cells})

    @property
    def pairs(self) -> list[Row]:
        """All that were compared: one family of tests."""
        return [pair for task in self.tasks for pair in task.pairs]


def read_board(connection: Connection, names: Sequence[str] = ()) -> BoardRows:
    """Reads the leaderboard of these runs, specs, prompt sets or benchmarks; of all without any.

    Raises SpecError for a name that no run that has ended has.
    """
    with read_all_kept(connection):
        cells = read_rows(connection, "from find_board(?::varchar[])", list(names))
    _check_names(connection, names, cells)
    entries = [{key: cell[key] for key in ("task", "run_id", "scorer")} for cell in cells if cell["obstacle"] is None]
    with read_kept(connection, *(cell["run_id"] for cell in cells)):
        pairs = read_rows(connection, "from compare_board(?)", entries) if len(entries) > 1 else []
        ranks = {
            (row["task"], row["run_id"]): row
            for row in (read_rows(connection, "from rank_board(?)", entries) if pairs else [])
        }
        speeds = _read_speeds(connection, [cell["run_id"] for cell in cells])
    suffix = find_suffix({cell["model"] for cell in cells})
    unranked = dict.fromkeys(("best_rank", "worst_rank", "is_winner"))
    tasks: dict[str, Task] = {}
    for cell in cells:
        task = tasks.setdefault(cell["task"], Task(cell["task"], [], []))
        rank = ranks.get((cell["task"], cell["run_id"]), unranked)
        note = _say_obstacle(connection, cell) if cell["obstacle"] else ""
        model = cell["model"].removesuffix(suffix)
        task.cells.append({**speeds[cell["run_id"]], **unranked, **cell, **rank, "note": note, "model": model})
    for pair in pairs:
        tasks[pair["task"]].pairs.append(pair)
    return BoardRows(tuple(names), list(tasks.values()), suffix)


def find_suffix(models: set[str]) -> str:
    """The settings that all of several models have behind their names, after a comma each."""
    settings = (model.split(", ")[:0:-1] for model in models if len(models) > 1)
    shared = [found[0] for found in takewhile(lambda found: len(set(found)) == 1, zip(*settings, strict=False))]
    return "".join(f", {setting}" for setting in reversed(shared))


def _read_speeds(connection: Connection, run_ids: list[str]) -> dict[str, Row]:
    """Speed, cost and device of each run. View by view, as together they take DuckDB seconds to plan."""
    found: dict[str, Row] = {run_id: {"ttft_p50_s": None} for run_id in run_ids}
    for query in (
        "select run_id, output_tokens_per_s, cost_per_right_answer, currency from run_cost",
        "select run_id, device_name, obstacle as speed_obstacle from run_conditions",
    ):
        for row in read_rows(connection, f"{query} where list_contains(?::varchar[], run_id)", run_ids):
            found[row["run_id"]].update(row)
    for row in read_rows(
        connection,
        "select run_id, value_s as ttft_p50_s from latency_percentile "
        "where list_contains(?::varchar[], run_id) and metric = 'ttft_s' and percentile = 0.5",
        run_ids,
    ):
        found[row["run_id"]].update(row)
    return found


def _say_obstacle(connection: Connection, cell: Row) -> str:
    """Why a score is not compared; of other prompts how many they are, of other settings which."""
    words, reference = str(cell["obstacle"]), cell["reference_run_id"]
    if reference is None:
        return words
    if "prompts" in words:
        overlaps = read_overlaps(connection, cell["run_id"], reference, GateSpec().min_overlap)
        shared, pairing = overlaps["prompt"], choose_pairing(overlaps, "auto")
        whole = shared["prompts"] + shared["only_baseline"]
        more = f"{shared['only_candidate']:,} more"
        if pairing != "prompt":
            specs = (_read_settings(connection, run_id) for run_id in (cell["run_id"], reference))
            more += f"; `assayline gate` compares them {say_pairing(pairing, *specs)}"
        return f"{words}: {shared['prompts']:,} of the task's {count(whole, 'prompt')}, {more}"
    if "settings" in words:
        mine, theirs = (_read_settings(connection, run_id) for run_id in (cell["run_id"], reference))
        return f"{words}: {'; '.join(list_changes(theirs, mine))}"
    return words


def _read_settings(connection: Connection, run_id: str) -> Row:
    (row,) = read_rows(connection, "select spec_json from runs where run_id = ?", run_id)
    spec = json.loads(row["spec_json"])
    return {key: spec[key] for key in SETTINGS if key in spec}


def _check_names(connection: Connection, names: Sequence[str], cells: Sequence[Row]) -> None:
    rows = read_rows(connection, "select run_id, name, prompt_set, benchmark_id, state from runs")
    ended = [row for row in rows if row["state"] != "running"]
    known = {row[key] for row in ended for key in ("run_id", "benchmark_id")}
    known |= {row[key] for row in ended if row["benchmark_id"] is None for key in ("name", "prompt_set")}
    for name in names:
        if name in known:
            continue
        if any(row["run_id"] == name for row in rows):
            raise SpecError(f"Run {name} has not finished, and a leaderboard is of runs that have.")
        named = sorted({row[key] for row in ended for key in ("name", "prompt_set")})
        hint = nearest(name, named) if named else "no run has ended yet"
        raise SpecError(
            f"There is no run, spec or prompt set {name!r} in the database: {hint}. Give ids of runs, names of specs "
            "or prompt sets, or ids of benchmarks; nothing for all runs."
        )
    if not cells:
        raise SpecError("There is no run to make a leaderboard of: none that is no part of a benchmark has ended yet.")
