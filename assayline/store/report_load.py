"""What a report shows of a run's load: what was asked for, what ended it, and whether generator and engine kept up."""

from dataclasses import dataclass
from typing import Any

from assayline.store.database import Connection
from assayline.store.models import read_rows

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LoadRows:
    """The rows of one run that has a load."""

    load: Row
    goodput: list[Row]
    send_lag: Row | None
    """None in a closed loop, as the next."""
    saturation: Row | None
    end: Row | None
    """The event load_ended, where nothing more was sent before the prompts were at their end."""
    stretches: list[Row]
    """By engine, what is measured between the warm-up and cool-down windows; none without such windows."""
    gaps: list[Row]
    """Percentiles of the gaps between tokens, where their stamps were recorded."""


def read_load(connection: Connection, run_id: str) -> LoadRows | None:
    """Reads a run that the database has; None if it has no load."""

    def of_run(query: str) -> list[Row]:
        return read_rows(connection, query, run_id)

    load = _first(of_run("select * from loads where run_id = ?"))
    if load is None:
        return None
    return LoadRows(
        load=load,
        goodput=of_run("select * from goodput where run_id = ? order by slo"),
        send_lag=_first(of_run("select * from send_lag where run_id = ?")),
        saturation=_first(of_run("select * from saturation where run_id = ?")),
        end=_first(of_run("select * from engine_events where run_id = ? and event = 'load_ended' order by at_s")),
        stretches=of_run(
            "select * from load_stretch where run_id = ? and has_windows and stretch_s is not null order by begins_at_s"
        ),
        gaps=of_run("select * from itl_percentile where run_id = ? and gaps > 0 order by percentile"),
    )


def _first(rows: list[Row]) -> Row | None:
    return next(iter(rows), None)
