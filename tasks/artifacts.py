"""Prefect artifacts of a run, sent by a background thread.

A slow or unreachable API delays nothing. Only the newest report of a kind is queued; failures are reported at the
end.
"""

import contextvars
import json
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, cast
from uuid import UUID

from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.assets import materialize
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate

from assayline.digests import digest_json

ASSET = "assayline://runs/"
"""Prefix of the key of a run as an asset in Prefect."""


def publish(kind: str, name: str, markdown: str, headline: str) -> None:
    """Attach a page to the flow run. Prefect shows a timeline per key, so each kind and name has its own key."""
    create_markdown_artifact(key=make_key(kind, name), markdown=markdown, description=headline)


def record_sources(run_id: str, sources: Sequence[str]) -> None:
    """Record a run as an asset that depends on the runs whose answers were its prompts."""

    @materialize(
        ASSET + run_id,
        by="assayline",
        name="record-sources",
        asset_deps=[ASSET + source for source in sources],
        cache_policy=NO_CACHE,
    )
    def record() -> None: ...

    record()


def make_key(kind: str, name: str) -> str:
    """Make a key of lower-case letters, digits and dashes. A name with other characters gets a digest."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60]
    return "-".join(filter(None, [kind, plain, "" if plain == name else digest_json(name)[:8]]))


END_WAIT_S = 5.0
"""Seconds that the end of a run waits for reports in flight."""


class Reports:
    """Sends the newest report of each kind, best effort."""

    def __init__(self) -> None:
        self.failures: dict[str, str] = {}
        """Reason why the last report did not arrive, by kind."""
        self._changed = threading.Condition()
        self._waiting: dict[str, Callable[[], None]] = {}
        self._sending: str | None = None
        self._is_closed = False
        self._tables: dict[str, UUID] = {}
        context = contextvars.copy_context()  # Prefect finds the current run in it
        threading.Thread(target=lambda: context.run(self._send_all), name="reports", daemon=True).start()

    def send(self, kind: str, report: Callable[[], None]) -> None:
        """Queue a report. It replaces a queued report of the same kind."""
        with self._changed:
            self._waiting[kind] = report
            self._changed.notify_all()

    def send_table(self, key: str, rows: list[dict[str, Any]], description: str) -> None:
        """Queue a table as an artifact; it replaces the one of this key that was sent before."""

        def put() -> None:
            if key not in self._tables:
                made = create_table_artifact(key=key, table=rows, description=description)
                self._tables[key] = cast(UUID, made)
                return
            update = ArtifactUpdate(data=json.dumps(rows), description=description)
            with get_client(sync_client=True) as client:
                client.update_artifact(self._tables[key], update)

        self.send(key, put)

    def close(self) -> None:
        """Wait up to END_WAIT_S for queued reports, and end the thread. Reports not sent by then count as failures."""
        deadline = time.monotonic() + END_WAIT_S
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            while (self._waiting or self._sending) and (left_s := deadline - time.monotonic()) > 0:
                self._changed.wait(left_s)
            for kind in {*self._waiting, *filter(None, [self._sending])}:
                self.failures.setdefault(kind, f"the API did not answer within {END_WAIT_S:.0f} s")
            self._waiting.clear()

    def _send_all(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if self._is_closed:
                        return
                    self._changed.wait()
                kind = next(iter(self._waiting))
                report = self._waiting.pop(kind)
                self._sending = kind
            try:
                report()
                self.failures.pop(kind, None)
            except Exception as error:  # the API's client may raise anything; a report must not fail the run
                self.failures[kind] = f"{type(error).__name__}: {error}"
            with self._changed:
                self._sending = None
                self._changed.notify_all()
