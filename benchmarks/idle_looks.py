"""HTTP requests of a worker that has nothing to ask and looks for the dead, by how many others there are.

    python -m benchmarks.idle_looks [--workers 16 100 1000]

The others are files of a store on this machine: leases, beats and a claim each, as workers write them. One real queue
looks for the first time, then five times while nothing happens, then twice after another was found dead by the flow.
Counts are by the server's log; none depends on how fast this machine is.
"""

import argparse
import json
import tempfile
from collections import Counter
from pathlib import Path

from assayline.evaluation.shards.queue import ShardQueue
from assayline.places.client import do_at_once
from assayline.places.home import attach, place_of
from assayline.runs.leases import BEATS, HELD, LEASES, Lease, Watch, bury
from benchmarks.claim_rates import serving_store
from benchmarks.place_calls import read_log

LEASE_S = 3_600.0
"""Nothing happens by itself."""
QUIET_LOOKS = 5


def pretend(run_dir: Path, workers: int) -> None:
    """So many workers, each with a shard that is not done."""
    place, queue = place_of(run_dir), ShardQueue(run_dir)
    queue.reset()

    def begin(number: int) -> None:
        owner, shard = f"worker-{number}-{number:08x}", f"shard-{number:06d}"
        holder = {"worker": f"worker-{number}", "host": "nowhere", "pid": 1}
        place.note(f"{BEATS}/{owner}", b"%020d" % 1)
        place.note(f"{LEASES}/{owner}", HELD + json.dumps(holder).encode())
        place.note(f"parts/requests/{shard}.parquet")
        place.note(f"claims/{shard}", owner.encode())

    do_at_once(begin, range(workers))
    queue.close(workers)


def measure_looks(folder: Path, workers: int) -> dict[str, dict[str, int]]:
    """Requests of the first look, of five that find nothing, and of the two after a death; by method and folder."""
    with serving_store(folder) as (_, log):
        prefix = f"looks-{workers}"
        run_dir = folder / prefix
        attach(run_dir, f"s3://bucket/{prefix}")
        pretend(run_dir, workers)
        lease = Lease(run_dir, "idle", LEASE_S)
        lease.begin()
        queue = ShardQueue(run_dir, lease, Watch(run_dir, LEASE_S))
        assert queue.claim() is None
        found = {}
        for what, looks in (("first", 1), ("quiet", QUIET_LOOKS), ("after a death", 2)):
            if what == "after a death":
                bury(run_dir, "worker-7")
            before = read_log(log, prefix)
            taken = [look(queue) for _ in range(looks)]
            assert any(taken) == (what == "after a death")
            found[what] = dict(read_log(log, prefix) - before)
        lease.end()
    return found


def look(queue: ShardQueue) -> Path | None:
    """One look, which is due now."""
    queue._lookout.throttle.forget()  # type: ignore[union-attr]
    return queue.take_over()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[16, 100, 1_000])
    print("workers   first look   a quiet look   two looks after a death")
    for workers in parser.parse_args().workers:
        with tempfile.TemporaryDirectory() as name:
            found = measure_looks(Path(name), workers)
        total = {what: Counter(counts).total() for what, counts in found.items()}
        quiet = total["quiet"] / QUIET_LOOKS
        print(f"{workers:7}   {total['first']:10}   {quiet:12.1f}   {total['after a death']:23}")
        print(json.dumps(found))


if __name__ == "__main__":
    main()
