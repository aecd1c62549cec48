"""assayline as a client of a server: runs `assayline evaluate` on a load and reads its database.

TTFT is from handing the request to the client library to the first event with a token.
"""

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from assayline.store.database import connect
from benchmarks.client_view import Load, Measurement, Observation, Server, find_gaps
from benchmarks.process_tree import run_on_cores

DATABASE_WAIT_S = 30.0


def measure_with_assayline(load: Load, server: Server, folder: Path, cores: set[int]) -> Measurement:
    """Run the command once, in a separate data folder."""
    prompts = folder / "assayline.jsonl"
    lines = ({"prompt": one.text, "sampling": {"max_tokens": one.output_tokens}} for one in load.prompts)
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    spec = folder / "assayline.yaml"
    spec.write_text(yaml.safe_dump(make_spec(load, server, prompts)))
    env = {
        "ASSAYLINE_DATA_DIR": str(folder / "data"),
        "PREFECT_HOME": str(folder / "prefect"),
    }
    command = [sys.executable, "-m", "assayline", "evaluate", str(spec), "--fresh"]
    run_on_cores(command, cores, env, folder / "assayline.log")
    return read_newest_run(folder / "data" / "assayline.duckdb", len(load.prompts))


def make_spec(load: Load, server: Server, prompts: Path) -> dict[str, Any]:
    """Make a spec of the load."""
    arrival = (
        {"kind": "concurrency", "requests": load.concurrency}
        if load.rate_per_s is None
        else {"kind": "constant", "rate_per_s": load.rate_per_s}
    )
    return {
        "name": "serving",
        "model": str(server.folder),
        "prompts": {"source": {"kind": "file", "path": str(prompts)}, "columns": {"sampling": "sampling"}},
        "chat": {"template": "plain"},
        "sampling": {"temperature": 0, "ignore_eos": True},
        "engine": {
            "backend": "server",
            "server": {"url": f"{server.url}/v1", "model": server.model_name},
            "warmup": False,  # so that the server's counters cover only the load
        },
        "load": {"arrival": arrival},
    }


def read_newest_run(database: Path, requests: int) -> Measurement:
    """Read the newest run from the database. A request without a result has failed."""
    with connect(database, DATABASE_WAIT_S, read_only=True) as connection:
        ((run_id,),) = connection.execute("select run_id from runs order by started_at desc limit 1").fetchall()
        rows = connection.execute(
            "select sent_at_s, first_token_at_s, last_token_at_s, output_tokens, token_at_s "
            "from stg_requests where run_id = ? and status = 'ok' and retries = 0",
            [run_id],
        ).fetchall()
        errors = connection.execute(
            "select coalesce(error_message, 'sent again') from stg_requests "
            "where run_id = ? and (status <> 'ok' or retries > 0)",
            [run_id],
        ).fetchall()
    observations = tuple(
        Observation(sent, first, last, tokens, find_gaps(stamps)) for sent, first, last, tokens, stamps in rows
    )
    return Measurement(observations, requests - len(observations), tuple(reason for (reason,) in errors))
