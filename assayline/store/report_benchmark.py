"""What a benchmark's plan and its report read: its runs, and the points of a sweep."""

from collections.abc import Sequence

from assayline.store.database import Connection


def read_achieved_rates(connection: Connection, benchmark_id: str, config_ids: Sequence[str]) -> list[float | None]:
    """Requests per second that these configurations achieved: medians over completed runs, None where nothing did."""
    query = """
        select median(requests_per_s)
        from run_summary
        where run_id in (
            select run_id from runs where benchmark_id = ? and config_id = ? and state = 'completed'
        )
    """
    return [connection.execute(query, [benchmark_id, one]).fetchall()[0][0] for one in config_ids]
