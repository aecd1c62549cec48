"""The task that lets somebody else start the workers: `srun`, `kubectl`, `ssh`, whatever ASSAYLINE_LAUNCH says.

The command may stay until its workers end, as `srun` does, or end when it has asked for them, as `kubectl apply` does.
Either way the run is over when all shards are done, and has failed when nobody is left who could do them.
"""

import shlex
import subprocess
import threading
import time
from collections.abc import Callable
from string import Template

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from assayline.errors import EngineError
from assayline.evaluation.orders import WorkOrder
from assayline.evaluation.shards.queue import ShardQueue
from assayline.runs.leases import Watch, list_owners
from assayline.spec.checks import count_devices

POLL_INTERVAL_S = 0.5
END_WAIT_S = 60.0
"""How long workers may take to end once all is done, or the run is stopped."""


@task(name="launch-workers", cache_policy=NO_CACHE, persist_result=False)
def launch_workers(order: WorkOrder, workers: int) -> None:
    """Runs the command that starts workers, and waits until everything is answered.

    Raises EngineError if it fails, or if no worker is there for `engine_start_timeout_s`.
    """
    log = get_run_logger()
    command = write_command(order, workers)
    log.info("Starting workers: %s", command)
    process = subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    last: list[str] = []

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            log.info("%s", line.rstrip())
            last[:] = [*last[-4:], line.rstrip()]

    reader = threading.Thread(target=read, name="launch", daemon=True)
    reader.start()
    try:
        wait_for_workers(order, lambda: bool(process.poll()), "ASSAYLINE_LAUNCH starts them")
        code = process.poll()
        queue = ShardQueue(order.run_dir)
        if code and not queue.is_finished() and not queue.is_stopped():
            reader.join(END_WAIT_S)
            words = " / ".join(last) or "it said nothing"
            raise EngineError(
                f"The command that starts workers ended with exit code {code}: {words}. What was answered is kept: the "
                "same command resumes the run."
            )
        process.wait(END_WAIT_S)
    except subprocess.TimeoutExpired:
        log.warning("The command that started the workers has not ended; it is left behind.")
    finally:
        if process.poll() is None:
            process.terminate()


def write_command(order: WorkOrder, workers: int) -> str:
    """The command of the settings, with $run, $workers and $gpus replaced; other names are the shell's."""
    gpus = count_devices(order.spec.engine.args)
    run = shlex.quote(order.url or str(order.run_dir))
    return Template(str(order.settings.launch)).safe_substitute(run=run, workers=workers, gpus=gpus)


def wait_for_workers(order: WorkOrder, has_failed: Callable[[], bool], origin: str) -> None:
    """Until all is done, the run is stopped, or starting workers has failed.

    Raises EngineError, with words on where they are from, if no worker is there for `engine_start_timeout_s`.
    """
    queue, watch = ShardQueue(order.run_dir), Watch(order.run_dir, order.lease_s)
    patience_s = order.settings.engine_start_timeout_s
    seen_s = time.monotonic()
    while not queue.is_finished() and not queue.is_stopped():
        owners = list_owners(order.run_dir)
        watch.look(owners)
        if watch.find_gone(owners) < set(owners):
            seen_s = time.monotonic()
        if has_failed():
            return
        if time.monotonic() - seen_s > patience_s:
            raise EngineError(
                f"No worker has shown itself in {order.run_dir} for {patience_s:g} s. Do the workers' machines see "
                f"this folder, under the same path? {origin}; ASSAYLINE_ENGINE_START_TIMEOUT_S is how long they may "
                "take."
            )
        time.sleep(POLL_INTERVAL_S)
