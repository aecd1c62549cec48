"""Kill it anywhere: flow, worker or engine, by SIGKILL, at random moments; then give the same command again.

`make test` kills three times, `make test-faults` thirty. The table at the end is what a person wants to know: how many
kills, how many resumed attempts, and how many requests were lost or answered twice.
"""

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flow_kit
import psutil
import pyarrow.parquet as pq
import pytest

pytestmark = [pytest.mark.prefect, pytest.mark.vllm]

REPEATS = 40
ATTEMPT_LIMIT_S = 180.0
ORPHAN_LIMIT_S = 10.0
VICTIMS = ("flow", "worker", "engine")


@pytest.fixture
def spec(tiny_model: Path) -> dict[str, Any]:
    """Some seconds of work for two engines side by side, a few requests in flight each."""
    return {
        "name": "faults",
        "model": str(tiny_model),
        "prompts": {
            "source": {"kind": "file", "path": str(flow_kit.ROOT / "examples" / "arithmetic.jsonl")},
            "columns": {"target": "answer"},
            "template": "{{ question }}",
            "repeats": REPEATS,
        },
        "sampling": {"temperature": 0, "max_tokens": 16},
        "engine": {
            "device": "cpu",
            "args": {
                "max_model_len": 256,
                "max_num_seqs": 2,
                "dtype": "float32",
                "enforce_eager": True,
                "kv_cache_memory_bytes": 2**27,
            },
        },
        "workers": 2,
    }


class Campaign:
    """Runs of one spec in one data folder, and what was done to them."""

    def __init__(self, env: dict[str, str], spec: Path, data_dir: Path, log: Path, dice: random.Random) -> None:
        self.env, self.spec, self.data_dir, self.log, self.dice = env, spec, data_dir, log, dice
        self.kills: Counter[str] = Counter()
        self.attempts = 0
        self.recovered_in_run = 0

    def attempt(self, kills_left: int) -> int | None:
        """One start of the command, shot at until it ends. Gives its exit code; None: it was shot itself."""
        self.attempts += 1
        with flow_kit.started(flow_kit.evaluate_command(self.spec), self.env, self.log) as command:
            deadline = time.monotonic() + ATTEMPT_LIMIT_S
            shots = 0
            while command.poll() is None and kills_left > 0:
                assert time.monotonic() < deadline, f"an attempt hangs; see {self.log}"
                self._wait_for_a_moment(command)
                victim = self.dice.choice(VICTIMS)
                if command.poll() is None and self._shoot(victim, command.pid):
                    self.kills[victim] += 1
                    kills_left -= 1
                    shots += 1
                    if victim == "flow":
                        command.wait(10)
                        self.assert_no_orphans()
                        return None
            code = command.wait(timeout=max(deadline - time.monotonic(), 1))
            self.recovered_in_run += shots if code == 0 else 0
        self.assert_no_orphans()
        return code

    def _wait_for_a_moment(self, command: Any) -> None:
        """Half of the moments are anywhere from the start on, half are in the middle of generating."""
        until = time.monotonic() + self.dice.uniform(0, 15)
        if self.dice.random() < 0.5:
            before = flow_kit.count_in_parts(self.data_dir)
            while flow_kit.count_in_parts(self.data_dir) <= before and command.poll() is None:
                time.sleep(0.05)
            until = time.monotonic() + self.dice.uniform(0, 2)
        while time.monotonic() < until and command.poll() is None:
            time.sleep(0.02)

    def _shoot(self, victim: str, flow: int) -> bool:
        hosts = flow_kit.hosts_of(self.data_dir)
        if victim == "flow":
            targets = [psutil.Process(flow)]
        elif victim == "engine":
            targets = hosts
        else:
            targets = [parent for host in hosts if (parent := host.parent()) is not None and parent.pid != flow]
        if not targets:
            return False
        self.dice.choice(targets).kill()
        return True

    def assert_no_orphans(self) -> None:
        """Ten seconds later nothing runs that this run had started, servers included."""
        left = flow_kit.processes_of(self.data_dir)
        flow_kit.wait_for(
            lambda: not flow_kit.processes_of(self.data_dir), ORPHAN_LIMIT_S, f"no orphan is left, of at first {left}"
        )


@pytest.fixture
def own_data_dirs(tmp_path: Path) -> Iterator[list[Path]]:
    """Data folders; whatever still uses one of them at the end is killed."""
    made: list[Path] = []
    yield made
    for folder in made:
        flow_kit.kill_all(flow_kit.processes_of(folder))


def read_texts(data_dir: Path) -> dict[str, str]:
    """The texts of a completed run, each request exactly once, in the database and in the parts."""
    ((run_id, state),) = flow_kit.query(data_dir, "select run_id, state from runs")
    assert state == "completed"
    rows = flow_kit.query(data_dir, "select request_id, text from completions where error_kind is null")
    assert flow_kit.query(data_dir, "select is_sound from request_integrity") == [True]
    in_parts: Counter[str] = Counter()
    for part in (data_dir / "runs" / run_id / "parts").rglob("*.parquet"):
        table = pq.read_table(part)  # a torn part would not open
        if part.parent.name == "completions":
            in_parts.update(table["request_id"].to_pylist())
    assert set(in_parts.values()) == {1} and set(in_parts) == {request_id for request_id, _ in rows}
    return dict(rows)


def test_whatever_is_killed_every_request_is_answered_once_with_the_same_text(
    spec: dict[str, Any],
    prefect_env: dict[str, str],
    tmp_path: Path,
    own_data_dirs: list[Path],
    request: pytest.FixtureRequest,
    record_property: Any,
) -> None:
    wanted, seed = int(request.config.getoption("--kills")), int(request.config.getoption("--kill-seed"))
    dice = random.Random(seed)
    spec_file = flow_kit.write_spec(tmp_path / "spec.yaml", spec)

    def start_campaign(name: str) -> Campaign:
        data_dir = tmp_path / name
        own_data_dirs.append(data_dir)
        env = {
            **prefect_env,
            "ASSAYLINE_DATA_DIR": str(data_dir),
            "ASSAYLINE_LOCK_DIR": str(tmp_path / "locks"),
            "ASSAYLINE_FLUSH_INTERVAL_S": "0.3",
            "ASSAYLINE_LOAD_INTERVAL_S": "2",
            "ASSAYLINE_DEVICE_WAIT_S": "20",
        }
        return Campaign(env, spec_file, data_dir, tmp_path / f"{name}.log", dice)

    undisturbed = start_campaign("undisturbed")
    assert undisturbed.attempt(0) == 0, undisturbed.log.read_text()
    expected = read_texts(undisturbed.data_dir)
    kills: Counter[str] = Counter()
    attempts = resumed = recovered = lost = twice = wrong = runs = 0
    while (left := wanted - sum(kills.values())) > 0:
        campaign = start_campaign(f"campaign-{runs}")
        code: int | None = None
        while code != 0:
            code = campaign.attempt(wanted - sum(kills.values()) - sum(campaign.kills.values()))
            assert campaign.attempts < left + 5, f"no end in sight; see {campaign.log}"
        kills += campaign.kills
        runs += 1
        attempts += campaign.attempts
        recovered += campaign.recovered_in_run
        found = read_texts(campaign.data_dir)
        ((attempt,),) = [[row] for row in flow_kit.query(campaign.data_dir, "select attempts from run_summary")]
        resumed += attempt - 1
        answers = flow_kit.query(campaign.data_dir, "select count(*) from completions")[0]
        lost += len(expected.keys() - found.keys())
        twice += answers - len(found)
        wrong += sum(found[request_id] != text for request_id, text in expected.items() if request_id in found)
    counts = {
        "kills": sum(kills.values()), **{f"{victim}_kills": kills[victim] for victim in VICTIMS}, "runs": runs,
        "attempts": attempts, "resumed_attempts": resumed, "kills_survived_within_an_attempt": recovered,
        "requests_per_run": len(expected), "lost": lost, "twice": twice, "other_texts": wrong, "seed": seed,
    }  # fmt: skip
    for name, value in counts.items():
        record_property(name, value)
    print(json.dumps(counts))
    assert (lost, twice, wrong) == (0, 0, 0) and counts["kills"] == wanted
