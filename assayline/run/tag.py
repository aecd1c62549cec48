"""Tags and the note of a run: in its manifest, from which they are copied to the table `runs`."""

from collections.abc import Sequence
from dataclasses import replace

from assayline.settings import Settings
from assayline.store.locks import holding
from assayline.store.manifest import Manifest, change_tags, find_run, read_manifest, write_manifest
from assayline.store.thread import DatabaseThread


def tag_run(
    settings: Settings, run_id: str, add: Sequence[str] = (), drop: Sequence[str] = (), note: str | None = None
) -> Manifest:
    """Add and drop tags, and replace the note, which an empty one removes. Return the run's manifest.

    After a kill, the same call completes both places. Raises SpecError for an unknown run or an invalid tag, and
    StoreError, also for a run that another process works on.
    """
    run_dir = find_run(settings.data_dir / "runs", run_id)
    with holding(run_dir, "wait for its end; --tag tags a run that begins."):
        run = read_manifest(run_dir)
        text = note and note.encode("utf-8", "replace").decode()  # arguments of a shell need not be UTF-8
        run = replace(run, tags=change_tags(run.tags, add, drop), note=run.note if text is None else text or None)
        write_manifest(run_dir, run)
        update = "update raw.runs set tags = ?, note = ? where run_id = ?"
        DatabaseThread(settings).run(lambda connection: connection.execute(update, [run.tags, run.note, run_id]))
    return run
