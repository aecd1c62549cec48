"""What a reader of a leaderboard must know first: who wins which task, or that nobody does."""

from assayline.report.board.rows import BoardRows, Task
from assayline.store.database import Row
from assayline.words import DASH, SPACE, count, show_points, show_range, show_share

MOST_TASKS = 8
MOST_NAMES = 6


def write_headline(rows: BoardRows) -> list[str]:
    """A sentence per task, then what is not compared."""
    sentences = [say_winner(task) for task in rows.tasks[:MOST_TASKS]]
    if (more := len(rows.tasks) - MOST_TASKS) > 0:
        sentences.append(f"{count(more, 'more task')} {'is' if more == 1 else 'are'} below.")
    left = [(task, cell) for task in rows.tasks for cell in task.cells if cell["obstacle"]]
    if left:
        told = [f"{cell['model']} on {task.name}, {cell['note']}" for task, cell in left[:3]]
        told += ["…"] if len(left) > 3 else []
        sentences.append(f"{count(len(left), 'score is', 'scores are')} shown and not compared: {'; '.join(told)}.")
    return sentences


def say_winner(task: Task) -> str:
    """Who is better than every other model, by how much; else who may be."""
    compared = task.compared
    if not compared:
        return f"{task.name}: no run is complete, so there is nothing to compare."
    if len(compared) == 1:
        return f"{task.name}: only {compared[0]['model']} was asked this, so there is nothing to compare."
    winner = next((cell for cell in compared if cell["is_winner"]), None)
    if winner is not None:
        pair, sign = min(
            (
                (pair, 1 if pair["candidate"] == winner["run_id"] else -1)
                for pair in task.pairs
                if winner["run_id"] in (pair["candidate"], pair["baseline"])
            ),
            key=lambda found: found[1] * found[0]["difference"],
        )
        second = task.find_model(pair["baseline"] if sign == 1 else pair["candidate"])
        return (
            f"{task.name}: {winner['model']} is better than every other model, {show_share(winner['mean'])}; than "
            f"{second}, which is nearest, by {show_points(sign * pair['difference'])} (95{SPACE}% interval "
            f"{show_difference_interval(pair, sign)}; p {pair['holm_p']:.2g} by Holm)."
        )
    if all(pair["verdict"] == "too_few" for pair in task.pairs):
        return f"{task.name}: too few prompts to compare {count(len(compared), 'model')}: five are needed."
    if not any(pair["verdict"] in ("better", "worse") for pair in task.pairs):
        return f"{task.name}: no winner; nothing tells {count(len(compared), 'model')} apart."
    leaders = [str(cell["model"]) for cell in task.leaders]
    shown = ", ".join(leaders[:MOST_NAMES]) + (f" and {len(leaders) - MOST_NAMES} more" if leaders[MOST_NAMES:] else "")
    return f"{task.name}: no winner; any of {count(len(leaders), 'model')} may be the best: {shown}."


def show_difference_interval(pair: Row, sign: int = 1) -> str:
    """The 95 % interval of a pair's difference; with -1 as the other side sees it. Empty where there is none."""
    ends = sorted(sign * pair[end] for end in ("low", "high") if pair[end] is not None)
    return show_range(*map(show_points, ends)) if ends else ""


def show_rank(cell: Row) -> str:
    """A rank as an interval: what the data cannot tell apart is one."""
    best, worst = cell["best_rank"], cell["worst_rank"]
    if best is None:
        return DASH
    return f"{best}" if best == worst else f"{best}–{worst}"
