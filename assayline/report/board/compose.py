"""The page of a leaderboard: models × tasks, and of each task its ranks, intervals, speeds, costs and pairs."""

from collections.abc import Callable

from assayline.report.board.charts import draw_scores
from assayline.report.board.headline import say_winner, show_difference_interval, show_rank, write_headline
from assayline.report.board.rows import BoardRows, Task
from assayline.report.document import Chart, Document, Figure, Paragraph, Section
from assayline.report.table import Column, Table, tabulate
from assayline.store.database import Row
from assayline.words import (
    DASH,
    count,
    show_money,
    show_name,
    show_note,
    show_number,
    show_points,
    show_range,
    show_seconds,
    show_share,
    show_value,
)

FOLDED_FROM = 10
"""Pairs from which on their table is folded."""

TOLD_APART = ("better", "worse")


def _show_interval(cell: Row) -> str:
    return show_range(show_share(cell["mean_low"]), show_share(cell["mean_high"]))


def _show_cost(cell: Row) -> str:
    return show_money(cell["cost_per_right_answer"], cell["currency"])


def _show_p(pair: Row) -> str:
    return DASH if pair["holm_p"] is None else f"{pair['holm_p']:.2g}"


def _say_note(cell: Row) -> str:
    notes = [f"not compared: {cell['note']}"] if cell["note"] else []
    notes += [f"{count(cell['error_requests'], 'error')} count as 0"] if cell["error_requests"] else []
    notes += [f"speed: {cell['speed_obstacle']}"] if cell["speed_obstacle"] and not cell["note"] else []
    return "; ".join(notes)


CELLS = (
    Column("rank", show_rank, show_number),
    Column("model", "model", show_name),
    Column("score", "mean", show_share),
    Column("95 % interval", _show_interval, show_number),
    Column("prompts", "prompts", show_value),
    Column("output tokens/s", "output_tokens_per_s", show_value),
    Column("first token, median", "ttft_p50_s", show_seconds),
    Column("per right answer", _show_cost, show_number),
    Column("device", "device_name"),
    Column("run", "run_id", show_name),
    Column("note", _say_note, show_note),
)
HOW = (
    "Scores are means of the first scorer, each with its own 95 % interval. Models are held against each other prompt "
    "by prompt, on the same prompts, clustered by prompt where one was asked repeatedly. {pairs} one family of tests: "
    "p is adjusted by Holm's step-down, and of pages on which all models are equal, at most 5 % call any difference. "
    "The interval of a pair is of that pair alone. A rank is an interval: 1–3 means that three models may be the first "
    "as far as these prompts tell. Only a model that is better than every other one of its task by more than chance "
    "is called its winner. Speeds and costs are of one run each and are not compared: that takes repeats "
    "(docs/comparison.md)."
)


def compose_board(rows: BoardRows) -> Document:
    """The page before it has a form."""
    sections = [Section("board", "Models and tasks", [tabulate_board(rows)])] if len(rows.tasks) > 1 else []
    sections += [_describe_task(task, number) for number, task in enumerate(rows.tasks, 1)]
    pairs = len(rows.pairs)
    if pairs:
        told = "The pair is" if pairs == 1 else f"All {count(pairs, 'pair')} of this page are"
        sections.append(Section("how", "How to read it", [Paragraph(HOW.format(pairs=told))]))
    return Document(
        title="Leaderboard",
        subtitle=f"{count(len(rows.models), 'model')}{rows.suffix}, {count(len(rows.tasks), 'task')}"
        + (f": {', '.join(rows.names)}" if rows.names else ""),
        state="leaderboard",
        headline=write_headline(rows),
        figures=_choose_figures(rows),
        sections=sections,
    )


def _choose_figures(rows: BoardRows) -> list[Figure]:
    winners = [task for task in rows.tasks if any(cell["is_winner"] for cell in task.cells)]
    apart = sum(pair["verdict"] in TOLD_APART for pair in rows.pairs)
    return [
        Figure("Models", f"{len(rows.models)}"),
        Figure("Tasks with a winner", f"{len(winners)} of {len(rows.tasks)}"),
        Figure("Pairs told apart", f"{apart} of {len(rows.pairs)}", "by more than chance, all pairs together"),
    ]


def tabulate_board(rows: BoardRows) -> Table:
    """Models × tasks: score, interval and rank in each cell."""
    cells = {(task.name, cell["model"]): cell for task in rows.tasks for cell in task.cells}

    def show_cell(task: Task) -> Callable[[str], str]:
        def show(model: str) -> str:
            cell = cells.get((task.name, model))
            if cell is None:
                return DASH
            ends = _show_interval(cell)
            rank = "not compared" if cell["obstacle"] else f"rank {show_rank(cell)}"
            return f"{show_share(cell['mean'])}{f' ({ends})' if ends else ''}, {rank}"

        return show

    columns = [
        Column("model", str, show_name),
        *(Column(task.name, show_cell(task), show_number) for task in rows.tasks),
    ]
    return tabulate("Score with 95 % interval, and rank", columns, rows.models)


def tabulate_task(task: Task) -> Table:
    """A task's models, the best score first, with speed and cost beside."""
    return tabulate(f"{task.name}: models, the highest score first", CELLS, task.cells)


def _describe_task(task: Task, number: int) -> Section:
    section = Section(f"task-{number}", task.name, [Paragraph(say_winner(task))])
    drawn = [cell for cell in task.cells if cell["mean"] is not None]
    if drawn:
        pale = " A pale dot is not compared." if any(cell["obstacle"] for cell in drawn) else ""
        section.blocks.append(
            Chart(
                f"Scores on {task.name}",
                f"From {drawn[0]['model']}, {show_share(drawn[0]['mean'])}, to {drawn[-1]['model']}, "
                f"{show_share(drawn[-1]['mean'])}.{pale}",
                draw_scores(drawn),
            )
        )
    section.blocks.append(tabulate_task(task))
    if task.pairs:
        section.blocks.append(_tabulate_pairs(task))
    return section


def _tabulate_pairs(task: Task) -> Table:
    columns = (
        Column("model", lambda pair: task.find_model(pair["candidate"]), show_name),
        Column("against", lambda pair: task.find_model(pair["baseline"]), show_name),
        Column("difference", "difference", show_points),
        Column("95 % interval", show_difference_interval, show_number),
        Column("better on", "better_prompts", show_value),
        Column("worse on", "worse_prompts", show_value),
        Column("p by Holm", _show_p, show_number),
        Column("", lambda pair: pair["verdict"].replace("_", " ")),
    )
    return tabulate(
        f"{task.name}: every pair, prompt by prompt", columns, task.pairs, is_folded=len(task.pairs) > FOLDED_FROM
    )
