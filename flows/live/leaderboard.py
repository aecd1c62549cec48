"""The leaderboard at the end of a night: of every model that was asked the same, if another one was.

A leaderboard that cannot be written is a warning, as the night is stored and judged.
"""

from prefect import get_run_logger

from assayline.report.board import read_board
from assayline.report.make import open_database, put_on_page, write_board
from assayline.settings import load_settings
from tasks.publish import publish


def write_leaderboard(prompt_set: str) -> None:
    """The models of a prompt set, in its folder, and as Markdown on the flow run's page; nothing of one model alone."""
    log = get_run_logger()
    try:
        settings = load_settings()
        rows = open_database(settings).run(lambda connection: read_board(connection, (prompt_set,)))
        if not rows.pairs:
            return
        written = write_board(settings, rows)
        log.info("Leaderboard: %s", written.html.absolute())
        publish("leaderboard", prompt_set, put_on_page(written.document), written.document.headline[0])
    except Exception as error:
        log.warning(
            "The leaderboard was not written: %s: %s `assayline report --leaderboard %s` tries again.",
            type(error).__name__,
            error,
            prompt_set,
        )
