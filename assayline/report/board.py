"""The leaderboard page: models × tasks, and per task the ranks, intervals, speeds, costs and pairs."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import takewhile

from assayline.comparison.board import NO_SCORES, Pair, rank_board, rank_judged_runs
from assayline.comparison.queries import choose_pairing, read_overlaps, say_pairing
from assayline.report.compared import tabulate_comparisons
from assayline.report.document import Column, Document, Figure, Section, Table, make_section, name_folder, tabulate
from assayline.report.measures import chart_shares, measured, show_of, spread, valued
from assayline.spec.criteria import GateSpec
from assayline.spec.identity import list_changes
from assayline.store.database import Connection, Row, read_rows
from assayline.words import (
    DASH,
    count,
    name_metric,
    show_name,
    show_note,
    show_number,
    show_points,
    show_range,
    show_share,
    show_value,
)

SETTINGS = ("sampling", "chat", "reasoning", "prompts")
"""Fields of a spec besides model and engine that decide answers, as `find_cells` compares them between runs."""


@dataclass(frozen=True)
class Task:
    """One task: a prompt set with its settings."""

    name: str
    cells: list[Row]
    """Cells of `rank_board`, best score first, with the columns of speed and cost, and `note`: the reason why it is not
    compared."""
    pairs: list[Pair]
    """Highest scores first."""

    @cached_property
    def compared(self) -> list[Row]:
        """Cells that are compared with each other."""
        return [cell for cell in self.cells if cell["obstacle"] is None]

    def find_model(self, run_id: str) -> str:
        """Return the model of a run."""
        return next(str(cell["model"]) for cell in self.cells if cell["run_id"] == run_id)


@dataclass(frozen=True)
class JudgedPairs:
    """Answers of the board's runs that judges compared in pairs, by one rubric."""

    rubric: str
    judge_runs: int
    ranks: list[Row]
    """Rows of `rank_judged_runs`."""


@dataclass(frozen=True)
class BoardRows:
    """Rows of a leaderboard."""

    names: tuple[str, ...]
    """Names that were requested; empty for all runs."""
    tasks: list[Task]
    suffix: str = ""
    """Suffix shared by all model names, such as ", dtype float32", which is removed from each."""
    judged: Sequence[JudgedPairs] = ()

    @cached_property
    def scored(self) -> list[Task]:
        """Tasks in which a run has a scorer."""
        return [task for task in self.tasks if any(cell["scorer"] for cell in task.cells)]

    @cached_property
    def speeds(self) -> dict[str, list[Row]]:
        """Cells of complete runs with speed alone, by task."""
        found = {task.name: [cell for cell in task.cells if _has_speed_alone(cell)] for task in self.tasks}
        return {task: cells for task, cells in found.items() if cells}

    @property
    def models(self) -> list[str]:
        """All models, sorted by name."""
        return sorted({cell["model"] for task in self.tasks for cell in task.cells})

    @property
    def pairs(self) -> list[Pair]:
        """All compared pairs: one family of tests."""
        return [pair for task in self.tasks for pair in task.pairs]


def read_board(connection: Connection, names: Sequence[str] = ()) -> BoardRows:
    """Rank the runs of these names, specs, prompt sets or benchmarks (default: all), and read what else is shown.

    Raises SpecError for a name that no finished run has.
    """
    cells, pairs = rank_board(connection, names)
    speeds = _read_speeds(connection, [cell["run_id"] for cell in cells])
    suffix = find_suffix({cell["model"] for cell in cells})
    tasks: dict[str, Task] = {}
    for cell in cells:
        task = tasks.setdefault(cell["task"], Task(cell["task"], [], []))
        note = _say_obstacle(connection, cell) if cell["obstacle"] else ""
        model = cell["model"].removesuffix(suffix)
        task.cells.append({**speeds[cell["run_id"]], **cell, "note": note, "model": model})
    for pair in pairs:
        tasks[pair.task].pairs.append(pair)
    judged = _read_judged(connection, [cell["run_id"] for cell in cells])
    return BoardRows(tuple(names), list(tasks.values()), suffix, judged)


def _read_judged(connection: Connection, run_ids: list[str]) -> list[JudgedPairs]:
    """Rank the runs that judges compared in pairs, if both runs are on the board."""
    query = """
        select rubric, list(judge_run_id order by judge_run_id) as judges
        from (
            select rubric, judge_run_id
            from judge_run
            where is_pairs and state in ('completed', 'imported') and list_contains(?::varchar[], run_id)
            group by rubric, judge_run_id
            having count(*) = 2
        )
        group by rubric
        order by rubric
    """
    found = [
        JudgedPairs(row["rubric"], len(row["judges"]), rank_judged_runs(connection, row["rubric"], row["judges"]))
        for row in read_rows(connection, query, run_ids)
    ]
    return [pairs for pairs in found if pairs.ranks]


def find_suffix(models: set[str]) -> str:
    """Return the settings at the end of every model name, each after a comma."""
    settings = (model.split(", ")[:0:-1] for model in models if len(models) > 1)
    shared = [found[0] for found in takewhile(lambda found: len(set(found)) == 1, zip(*settings, strict=False))]
    return "".join(f", {setting}" for setting in reversed(shared))


def _read_speeds(connection: Connection, run_ids: list[str]) -> dict[str, Row]:
    """Read speed, cost and device of each run."""
    speeds = ", ".join(f"max(value) filter (metric = '{metric}') as {metric}" for metric in SPEEDS)
    query = f"""
        select
            run_id,
            any_value(device_name) as device_name,
            any_value(obstacle) as speed_obstacle,
            {speeds},
            max(value) filter (metric = 'cost_per_right_answer') as cost_per_right_answer,
            max(split_part(unit, '/', 1)) filter (metric = 'cost_per_right_answer') as unit
        from run_conditions
        left join run_metric using (run_id)
        where list_contains(?::varchar[], run_id)
        group by run_id
    """  # noqa: S608
    return {row["run_id"]: row for row in read_rows(connection, query, run_ids)}


def _say_obstacle(connection: Connection, cell: Row) -> str:
    """Explain why a score is not compared, with the number of other prompts or the settings that differ."""
    words, reference = str(cell["obstacle"]), cell["reference_run_id"]
    if reference is None:
        return words
    if "prompts" in words:
        overlaps = read_overlaps(connection, cell["run_id"], reference, GateSpec().min_overlap)
        shared, pairing = overlaps["prompt"], choose_pairing(overlaps)
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


MOST_TASKS = 8
MOST_NAMES = 6
FOLDED_FROM = 10
"""Minimum number of pairs for their table to be folded."""
APART = ("better", "worse")
"""Verdicts on pairs that the data tell apart."""
SPEEDS = ("output_tokens_per_s", "ttft_p50_s", "total_tokens_per_s", "batch_latency_p50_s")
"""Metrics of runs with speed alone; the first two that a load has are its columns."""


def write_headline(rows: BoardRows) -> list[str]:
    """Return a sentence per task with several models, then the tasks and the scores that are not compared."""
    tasks = rows.scored or rows.tasks[:1]
    told = [task for task in tasks if len(task.compared) > 1] or tasks[:1]
    more, alone = len(told) - MOST_TASKS, len(tasks) - len(told)
    left = [(task, cell) for task in rows.tasks for cell in task.cells if cell["obstacle"] and cell["mean"] is not None]
    named = [f"{cell['model']} on {task.name}, {cell['note']}" for task, cell in left[:3]] + ["…"] * (len(left) > 3)
    return [
        *map(say_winner, told[:MOST_TASKS]),
        f"{count(more, 'more task is', 'more tasks are')} below." if more > 0 else "",
        f"{count(alone, 'other task has', 'other tasks have')} no two models with scores to compare." if alone else "",
        f"{count(len(left), 'score is', 'scores are')} shown but not compared: {'; '.join(named)}." if left else "",
    ]


def say_winner(task: Task) -> str:
    """Name the model that beats every other one and by how much, or else the candidates."""
    compared, verdicts = task.compared, {pair.verdict for pair in task.pairs}
    if not compared:
        return f"{task.name}: no completed run has scores, so there is nothing to compare."
    if len(compared) == 1:
        return f"{task.name}: only {compared[0]['model']} ran this task, so there is nothing to compare."
    winner = next((cell for cell in compared if cell["is_winner"]), None)
    if winner is not None:
        pair, sign = min(
            (
                (pair, 1 if pair.candidate == winner["run_id"] else -1)
                for pair in task.pairs
                if winner["run_id"] in pair.sides
            ),
            key=lambda found: found[1] * (found[0].found.difference or 0),
        )
        found, second = pair.found, task.find_model(pair.sides[sign == 1])
        ends = sorted((sign * (found.low or 0), sign * (found.high or 0)))
        return (
            f"{task.name}: {winner['model']} beats every other model with {show_share(winner['mean'])}, ahead of "
            f"{second} by {show_points(sign * (found.difference or 0))} (95% interval "
            f"{show_range(*map(show_points, ends))}; Holm-adjusted p = {found.p_value:.2g})."
        )
    if verdicts == {"too_few"}:
        return f"{task.name}: too few prompts to compare {count(len(compared), 'model')}; at least five are needed."
    if verdicts.isdisjoint(APART):
        return f"{task.name}: no winner; the differences between {count(len(compared), 'model')} are within chance."
    return f"{task.name}: {_name_leaders(compared)}"


def say_judged(judged: JudgedPairs) -> str:
    """Name the run whose answers win against every other run's by more than chance, or say that there is none."""
    winner = next((row for row in judged.ranks if row["is_winner"]), None)
    if winner is not None:
        return f"{judged.rubric}: {name_model(winner)} beats every other model in judged pairs."
    if any(row["strength"] is None for row in judged.ranks):
        return f"{judged.rubric}: no winner; the judged pairs do not link all models to each other."
    if all(row["low"] is None for row in judged.ranks):
        return f"{judged.rubric}: too few prompts were judged in both orders; at least five are needed."
    return f"{judged.rubric}: {_name_leaders(judged.ranks)}"


def _name_leaders(rows: Sequence[Row]) -> str:
    """Name the models that no other model beats."""
    leaders = [name_model(row) for row in rows if row["best_rank"] == 1]
    shown = ", ".join(leaders[:MOST_NAMES]) + (f" and {len(leaders) - MOST_NAMES} more" if leaders[MOST_NAMES:] else "")
    return f"no winner; any of {count(len(leaders), 'model')} may be the best: {shown}."


def name_model(row: Row) -> str:
    """Return the model of a run; its id if the database lacks the run."""
    return str(row["model"] or row["run_id"])


def _has_speed_alone(cell: Row) -> bool:
    return cell["scorer"] is None and cell["obstacle"] == NO_SCORES


def show_rank(cell: Row) -> str:
    """Format a rank as an interval: models that the data cannot separate share it."""
    best, worst = cell["best_rank"], cell["worst_rank"]
    if best is None:
        return DASH
    return f"{best}" if best == worst else f"{best}–{worst}"


def _say_note(cell: Row) -> str:
    notes = [f"not compared: {cell['note']}"] if cell["note"] and not _has_speed_alone(cell) else []
    notes += [f"{count(cell['error_requests'], 'error')} scored as 0"] if cell["error_requests"] else []
    notes += [f"speed: {cell['speed_obstacle']}"] if cell["speed_obstacle"] and not cell["note"] else []
    return "; ".join(notes)


RANK, RUN = Column("rank", show_rank, show_number), Column("run", "run_id", show_name)
MODEL = Column("model", name_model, show_name)
CELLS = (
    *spread("score", "mean"),
    Column("prompts", "prompts", show_value),
    *measured(*SPEEDS[:2]),
    valued("cost per correct answer", "cost_per_right_answer"),
    Column("device", "device_name"),
    RUN,
    Column("note", _say_note, show_note),
)
JUDGED = (
    RANK,
    MODEL,
    Column("strength", "strength", show_value),
    Column("95% CI", ("low", "high"), show_value),
    Column("comparisons", "comparisons", show_value),
    Column("prompts", "prompts", show_value),
    Column("won", "won_share", show_share),
    RUN,
)
HOW = (
    "Scores are means of the first scorer, each with its own 95% interval. Models are compared pairwise on the "
    "same prompts, clustered by prompt if prompts were repeated. {pairs} one family of tests: p is adjusted with "
    "Holm's step-down procedure. If all models were equal, at most 5% of pages would show any difference. Each "
    "pair's interval is unadjusted. A rank is an interval: 1–3 means that the model may be first, second or third. "
    "A winner beats every other model of its task by more than chance. Speed and cost come from one run each and "
    "are not tested; that takes repeats (docs/guides/comparing.md)."
)


HOW_JUDGED = (
    "Judges compared two answers to the same prompt in both orders; pairs judged in one order are left out. A strength "
    "is Bradley and Terry's: a difference of 1 means odds of 2.7 to 1 between answers of equal length. A rank is an "
    "interval, from p-values adjusted with Holm's step-down procedure for all pairs of models of the rubric. The "
    "judges' errors are not in the interval: their own reports compare them with labels."
)


def compose_board(rows: BoardRows) -> Document:
    """Build the leaderboard document: the models × tasks, the tasks with several models, and all runs."""
    is_one, pairs = len(rows.tasks) == 1 and not rows.speeds, len(rows.pairs)
    winners = [task for task in rows.tasks if any(cell["is_winner"] for cell in task.cells)]
    apart = sum(pair.verdict in APART for pair in rows.pairs)
    told = "The pair on this page is" if pairs == 1 else f"The {count(pairs, 'pair')} on this page are"
    return Document.of(
        "Leaderboard",
        f"{count(len(rows.models), 'model')}{rows.suffix}, {count(len(rows.scored), 'task')}"
        + (f", {count(len(rows.speeds), 'load')} with speed alone" if rows.speeds else "")
        + (f": {', '.join(rows.names)}" if rows.names else ""),
        "leaderboard",
        write_headline(rows),
        [
            Figure("Models", f"{len(rows.models)}"),
            Figure("Tasks with a winner", f"{len(winners)} of {len(rows.scored)}"),
            Figure("Significant pairs", f"{apart} of {pairs}", "Holm-adjusted over all pairs"),
        ],
        [
            None if is_one else make_section("board", "Models and tasks", tabulate_board(rows)),
            *(
                _describe_task(task, number)
                for number, task in enumerate(rows.tasks, 1)
                if is_one or len(task.compared) > 1
            ),
            make_section("runs", "Runs", tabulate_runs(rows)),
            _describe_judged(rows.judged) if rows.judged else None,
            make_section("how", "How to read this page", HOW.format(pairs=told) if pairs else None),
        ],
        f"leaderboards/{name_folder('-'.join(rows.names) or 'all', rows.names, is_plain=len(rows.names) < 2)}",
    )


def tabulate_board(rows: BoardRows) -> Table:
    """Tabulate models × tasks, with score, interval and rank, and the loads of runs with speed alone."""
    cells = {(task.name, cell["model"]): cell for task in rows.scored for cell in task.cells if cell["scorer"]}

    def show(task: Task, model: str) -> str:
        cell = cells.get((task.name, model))
        if cell is None:
            return DASH
        ends = show_range(show_share(cell["mean_low"]), show_share(cell["mean_high"]))
        rank = show_rank(cell)
        place = "not compared" if cell["obstacle"] else "" if rank == DASH else f"rank {rank}"
        return ", ".join(filter(None, [f"{show_share(cell['mean'])}{f' ({ends})' if ends else ''}", place]))

    columns = [Column(task.name, partial(show, task), show_number) for task in rows.scored]
    for load, found in rows.speeds.items():
        of_model = {cell["model"]: cell for cell in found}
        known = [metric for metric in SPEEDS if any(cell[metric] is not None for cell in found)]
        columns += [
            Column(f"{load}: {name_metric(metric)}", partial(_read_speed, of_model, metric), show_of(metric))
            for metric in known[:2]
        ]
    caption = "Score with 95% interval, and rank" + "; speed of each load" * bool(rows.speeds)
    return tabulate(caption, [Column("model", str, show_name), *columns], rows.models)


def _read_speed(cells: dict[str, Row], metric: str, model: str) -> float | None:
    return cells[model][metric] if model in cells else None


def tabulate_runs(rows: BoardRows) -> Table:
    """Tabulate the runs of all tasks, the highest score of each first, with speed and cost."""
    task = [Column("task", "task", show_name)] if len(rows.tasks) > 1 else []
    cells = [cell for task in rows.tasks for cell in task.cells]
    return tabulate("Runs, highest score first", [RANK, MODEL, *task, *CELLS], cells)


def _describe_task(task: Task, number: int) -> Section | None:
    drawn = [cell for cell in task.cells if cell["mean"] is not None]
    pale = " (pale dots are not compared)" if any(cell["obstacle"] for cell in drawn) else ""
    described = f"Mean score of each model with its 95% interval{pale}"
    keys = {"name": "model", "value": "mean", "low": "mean_low", "high": "mean_high"}
    pairs = [(tuple(map(task.find_model, pair.sides)), pair.found, pair.verdict) for pair in task.pairs]
    return make_section(
        f"task-{number}",
        task.name,
        say_winner(task) if number > MOST_TASKS else None,  # the others are in the headline
        chart_shares(f"Scores on {task.name}", described, "score (%)", drawn, keys) if len(drawn) > 1 else None,
        tabulate_comparisons(
            f"{task.name}: all pairs", ("model", "compared with"), pairs, is_folded=len(pairs) > FOLDED_FROM
        ),
    )


def _describe_judged(judged: Sequence[JudgedPairs]) -> Section | None:
    caption = "{}: strengths from {}, highest first"
    return make_section(
        "judged",
        "Judged pairs",
        (
            [
                say_judged(one),
                tabulate(caption.format(one.rubric, count(one.judge_runs, "judge run")), JUDGED, one.ranks),
            ]
            for one in judged
        ),
        HOW_JUDGED,
    )
