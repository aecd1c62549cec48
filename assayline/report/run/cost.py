"""The section about what a run used and cost: devices, energy, money."""

from assayline.report.document import Paragraph, Section
from assayline.report.run.rows import ReportRows
from assayline.report.table import Column, tabulate
from assayline.store.database import Row
from assayline.words import count, show_known, show_money, show_number, show_range, show_share, show_value

GIB = 2**30


def say_cost(rows: ReportRows) -> str:
    """What it cost, in a sentence for the top; nothing without a price, or where what it is per was not measured."""
    cost = rows.cost
    if cost["cost"] is None:
        return ""
    each = ""
    if cost["cost_per_right_answer"] is not None:
        span = _show_interval(cost)
        sure = f", with 95 % confidence {span}" if span else ""
        each = f"; {show_money(cost['cost_per_right_answer'], cost['currency'])} per right answer at work{sure}"
    return f"It cost {show_money(cost['cost'], cost['currency'])}, loading and downtime included{each}."


def describe_cost(rows: ReportRows) -> Section | None:
    """Devices, energy and cost, as far as there are any."""
    has_price = rows.cost["currency"] is not None
    if not rows.devices and not has_price:
        return None
    section = Section("cost", "Devices, energy and cost")
    if has_price:
        section.blocks.append(Paragraph(_introduce_cost(rows.cost), is_warning=rows.cost["cost"] is None))
        section.blocks.append(tabulate(f"Cost in {rows.cost['currency']}", COSTS, _list_costs(rows.cost)))
    if rows.energy is not None:
        section.blocks.append(Paragraph(_say_energy(rows.energy, rows.cost)))
    if rows.devices:
        section.blocks.append(tabulate("Devices over all of their samples", DEVICES, rows.devices, is_folded=True))
    return section


def _introduce_cost(cost: Row) -> str:
    if cost["cost"] is None:
        return (
            "The run has a price, and its cost is not known: what one of the rates is per, such as GPU-hours of a run "
            "without a GPU or the energy of one without a sensor, was not measured."
        )
    return (
        "At work is the window that throughput is of. The whole run counts from the start of the first engine to the "
        "end of the last, loading, warm-up and downtime included. docs/cost.md says what is not counted."
    )


def _show_interval(cost: Row) -> str:
    ends = (cost["cost_per_right_answer_low"], cost["cost_per_right_answer_high"])
    return show_range(*(show_money(end, cost["currency"]) for end in ends))


def _list_costs(cost: Row) -> list[tuple[str, str, str, str]]:
    kinds = {
        "the run": ("working_cost", "cost"),
        "per million output tokens": ("cost_per_million_output_tokens", "full_cost_per_million_output_tokens"),
        "per thousand requests": ("cost_per_thousand_requests", "full_cost_per_thousand_requests"),
        "per right answer": ("cost_per_right_answer", "full_cost_per_right_answer"),
    }
    return [
        (
            what,
            show_money(cost[at_work], cost["currency"]),
            _show_interval(cost) if at_work == "cost_per_right_answer" else "",
            show_money(cost[whole], cost["currency"]),
        )
        for what, (at_work, whole) in kinds.items()
    ]


def _say_energy(energy: Row, cost: Row) -> str:
    if energy["energy_joules"] is None:
        return (
            "The GPUs' energy is not known: a sensor is missing, or samples of more than a twentieth of the work are."
        )
    if energy["energy_source"] == "counter":
        how = "by their own counters"
    else:
        how = f"integrated from samples of their power, off by at most {show_value(energy['energy_error_joules'])} J"
    each = ""
    if cost["energy_per_output_token_joules"] is not None:
        each = f" At work that is {show_value(cost['energy_per_output_token_joules'])} J per output token."
    return (
        f"{count(energy['gpus'], 'GPU')} used {show_value(energy['energy_joules'])} J ({how}), "
        f"{show_value(energy['idle_joules'])} J of it with no engine at work.{each}"
    )


def _show_memory(row: Row) -> str:
    if row["max_memory_used_bytes"] is None:
        return show_value(None)
    return f"{row['max_memory_used_bytes'] / GIB:.1f} of {(row['memory_total_bytes'] or 0) / GIB:.1f}"


COSTS = (
    Column("", 0),
    Column("at work", 1, show_number),
    Column("95 % interval", 2, show_number),
    Column("whole run", 3, show_number),
)
DEVICES = (
    Column("worker", "worker"),
    Column("device", "device"),
    Column("utilization, mean", "mean_utilization_share", show_share),
    Column("memory, GiB at most", _show_memory),
    Column("power, mean W", "mean_power_watts", show_value),
    Column("most W", "max_power_watts", show_value),
    Column("°C at most", "max_temperature_c", show_value),
    Column("throttled", "throttled_share", show_share),
    Column("by", "throttle_reasons", show_known),
)
