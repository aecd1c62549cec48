"""view: show runs, their answers and pairs of runs in a browser, and label answers.

    assayline view [RUN_ID [RUN_ID]] [--port N] [--host HOST] [--no-browser]

No Prefect flow: it serves pages from the database until Ctrl-C.
"""

import sys
import threading
import webbrowser
from urllib.parse import urlencode

from assayline.flows.cli.options import make_parser
from assayline.flows.cli.words import complete_run_id
from assayline.words import LOOPBACK

EPILOG = """Only a browser that opens the printed URL is answered: it has a random token. Each page opens the
database for reading and closes it again, so runs go on meanwhile (docs/guides/viewing.md).

Exit codes: 0 ended by Ctrl-C, 2 an unknown run or an invalid setting, 6 the database cannot be read, 14 the
port is in use."""
PARSER = make_parser("view", EPILOG)
PARSER.add_argument("run_id", nargs="*", metavar="RUN_ID", help="run to open, or two to compare (default: all runs)")
PARSER.add_argument("--port", type=int, default=0, metavar="N", help="port to listen on (default: a free one)")
PARSER.add_argument("--host", default="127.0.0.1", metavar="HOST", help="address to listen on (default: 127.0.0.1)")
PARSER.add_argument("--no-browser", action="store_true", help="print the URL and open no browser")


def run(arguments: list[str]) -> int:
    """Serve the viewer until Ctrl-C. Return the exit code."""
    known = PARSER.parse_args(arguments)
    if len(known.run_id) > 2:
        PARSER.error("pass at most two RUN_IDs")
    if not 0 <= known.port < 2**16:
        PARSER.error(f"--port {known.port}: expected 0 to 65535")

    from assayline.comparison.baselines import check_run
    from assayline.report.make import open_database
    from assayline.settings import load_settings
    from assayline.view.server import serve

    settings = load_settings()
    runs = [("run", complete_run_id(one, settings)) for one in known.run_id]
    for _, run_id in runs:
        if not settings.run_dir(run_id).is_dir():  # a run that has just begun is not in the database
            open_database(settings).query(lambda connection: check_run(connection, run_id))  # noqa: B023 - called here
    path = f"/{('', 'run', 'compare')[len(runs)]}" + (f"?{urlencode(runs)}" if runs else "")
    if known.host not in LOOPBACK:
        print(
            f"warning: Other machines can reach the viewer on {known.host}. Anyone with the URL can read and label all "
            "answers, and the connection is not encrypted.",
            file=sys.stderr,
        )

    def show(url: str) -> None:
        print(f"Viewer: {url}\nEnd it with Ctrl-C.", flush=True)
        if not known.no_browser:
            threading.Thread(target=webbrowser.open, args=[url], daemon=True).start()

    serve(settings, known.host, known.port, path, show)
    return 0
