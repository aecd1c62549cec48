"""The queue between preparing and generating: a shard goes to one worker, and none is left behind."""

import itertools
from pathlib import Path

from record_kit import fill_queue, read_line, request_of, start_python

from assayline.evaluation.shards.queue import ShardQueue
from assayline.evaluation.shards.rows import read_shard
from assayline.records import Request
from assayline.store.parts import write_part

CLAIM_ALL = """
import sys
from pathlib import Path
from assayline.evaluation.shards.queue import ShardQueue
queue = ShardQueue(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
print(" ".join(request.request_id for request in queue.pull() if request is not None))
"""


def write_shard(run_dir: Path, shard: int, *requests: Request) -> None:
    write_part(run_dir, "requests", f"shard-{shard:06d}", requests)


def test_processes_share_the_shards_without_overlap_or_loss(tmp_path: Path) -> None:
    """Peers, row 13: every request is taken exactly once."""
    ids = fill_queue(tmp_path, shards=60, per_shard=2)
    processes = [start_python(CLAIM_ALL, tmp_path) for _ in range(3)]
    assert [read_line(process) for process in processes] == ["ready"] * 3
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    taken = [process.communicate(timeout=60)[0].split() for process in processes]
    assert sorted(itertools.chain(*taken)) == sorted(ids)


def test_an_open_and_empty_queue_yields_none_and_goes_on(tmp_path: Path) -> None:
    queue = ShardQueue(tmp_path)
    queue.reset()
    requests = queue.pull()
    assert next(requests) is None
    assert next(requests) is None
    write_shard(tmp_path, 0, request_of(0))
    found = next(request for request in requests if request is not None)
    assert found == request_of(0)


def test_the_last_shard_is_seen_though_the_queue_was_scanned_a_moment_before(tmp_path: Path) -> None:
    """Peers, row 13: a shard that is written and the mark that closes the queue may come right after a look."""
    queue = ShardQueue(tmp_path)
    queue.reset()
    requests = queue.pull()
    assert next(requests) is None
    write_shard(tmp_path, 0, request_of(0))
    queue.close()
    assert list(requests) == [request_of(0)]


def test_closed_and_empty_is_the_end(tmp_path: Path) -> None:
    queue = ShardQueue(tmp_path)
    queue.reset()
    queue.close()
    assert list(queue.pull()) == []


def test_reset_makes_every_shard_claimable_again(tmp_path: Path) -> None:
    ids = fill_queue(tmp_path, shards=3, per_shard=1)
    queue = ShardQueue(tmp_path)
    queue.stop()
    assert len(list(queue.pull())) == 3 and list(ShardQueue(tmp_path).pull()) == []
    queue.reset()
    again = ShardQueue(tmp_path)
    assert not again.is_stopped()
    assert [request.request_id for request in itertools.islice(again.pull(), 3) if request] == ids
    assert next(again.pull()) is None, "reset opens the queue"


def test_requests_whose_rendering_failed_are_not_generated(tmp_path: Path) -> None:
    """Peers, row 8: they have their error row already."""
    write_shard(tmp_path, 0, request_of(0), request_of(1, prompt_token_ids=[]), request_of(2))
    [shard] = (tmp_path / "parts" / "requests").glob("*.parquet")
    assert [request.request_id for request in read_shard(shard)] == ["request-00000", "request-00002"]


def test_stopping_is_seen_by_everybody(tmp_path: Path) -> None:
    ShardQueue(tmp_path).reset()
    assert not ShardQueue(tmp_path).is_stopped()
    ShardQueue(tmp_path).stop()
    assert ShardQueue(tmp_path).is_stopped()


def test_stopping_a_run_whose_folder_is_gone_is_no_error(tmp_path: Path) -> None:
    ShardQueue(tmp_path / "gone").stop()
