"""Real engines. Kill flow or engine by SIGKILL, at random moments; then resume.

`make test` kills an engine and then the flow, `make test-faults` thirty in any order, with two engines side by side
(on fake ones, `make test` does so, too: tests/evaluation/test_worker_faults.py). The table at the
end is what a person wants to know: how many kills, how many resumed attempts, and how many requests were lost or
answered twice.
"""

import hashlib
import json
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import flow_kit
import psutil
import pyarrow.parquet as pq
import pytest

pytestmark = [pytest.mark.prefect, pytest.mark.vllm]

PROMPTS = flow_kit.ROOT / "examples" / "arithmetic.jsonl"
ATTEMPT_LIMIT_S = 300.0
ORPHAN_LIMIT_S = 10.0
TEXTS_OF_PROMPTS = (
    "select count(distinct text) from completions join requests using (run_id, request_id) group by prompt_id"
)
VICTIMS = ("engine", "flow")
"""With one kill each, the one that a run survives falls into its first attempt."""


def spec_of(model: Path, prompts: Path, repeats: int, workers: int) -> dict[str, Any]:
    """Return some seconds of work for that many engines in parallel, with a few requests in flight each."""
    return {
        "name": "faults",
        "model": str(model),
        "prompts": {
            "source": {"kind": "file", "path": str(prompts)},
            "columns": {"target": "answer"},
            "template": "{{ question }}",
            "repeats": repeats,
        },
        "sampling": {"temperature": 0, "max_tokens": 16},
        "engine": {"device": "cpu", "args": {**flow_kit.SMALL_ENGINE, "max_num_seqs": 2}},
        "workers": workers,
    }


class Campaign:
    """Runs of one spec in one data folder, and what was done to them."""

    def __init__(self, env: dict[str, str], spec: Path, data_dir: Path, log: Path, dice: random.Random) -> None:
        self.env, self.spec, self.data_dir, self.log, self.dice = env, spec, data_dir, log, dice
        self.kills: Counter[str] = Counter()
        self.victims: list[str] = []
        """Who is next; when all are gone, the dice deal again."""
        self.attempts = 0
        self.recovered_in_run = 0
        self.may_shoot: Callable[[], bool] = lambda: True

    def attempt(self, kills_left: int) -> int | None:
        """One start of the command, shot at until it ends. Gives its exit code; None: it was shot itself."""
        self.attempts += 1
        with flow_kit.started(flow_kit.evaluate_command(self.spec), self.env, self.log) as command:
            deadline = time.monotonic() + ATTEMPT_LIMIT_S
            shots = 0
            while command.poll() is None and kills_left > 0:
                assert time.monotonic() < deadline, f"an attempt hangs; see {self.log}"
                if not self.may_shoot():
                    time.sleep(0.05)
                    continue
                victim = self._next_victim()
                self._wait_for_a_moment(command, generating=not self.kills[victim])
                if command.poll() is None and self._shoot(victim, command.pid):
                    self.victims.remove(victim)
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

    def _next_victim(self) -> str:
        """All kinds in turn, in whatever order."""
        self.victims = self.victims or self.dice.sample(VICTIMS, len(VICTIMS))
        return self.victims[0]

    def _wait_for_a_moment(self, command: Any, generating: bool) -> None:
        """Half of the moments are anywhere from the start on, half, and the first of each kind, while it generates."""
        until = time.monotonic() + self.dice.uniform(0, 15)
        if self.dice.random() < 0.5 or generating:
            before = flow_kit.count_in_parts(self.data_dir)
            while flow_kit.count_in_parts(self.data_dir) <= before and command.poll() is None:
                time.sleep(0.05)
            until = time.monotonic() + self.dice.uniform(0, 2)
        while time.monotonic() < until and command.poll() is None:
            time.sleep(0.02)

    def _shoot(self, victim: str, flow: int) -> bool:
        targets = [psutil.Process(flow)] if victim == "flow" else flow_kit.hosts_of(self.data_dir)
        if not targets:
            return False
        self.dice.choice(targets).kill()
        return True

    def assert_no_orphans(self) -> None:
        """Ten seconds later nothing runs that this run had started."""
        flow_kit.assert_nothing_runs(self.data_dir, ORPHAN_LIMIT_S)


@pytest.fixture(scope="module")
def campaigns(
    tmp_path_factory: pytest.TempPathFactory,
    prefect_env: dict[str, str],
    prefect_api: str,
    charts: Path,
    request: pytest.FixtureRequest,
) -> Iterator[Any]:
    """Start a campaign in its own data folder; kill processes that still use one of them at the end."""
    folder = tmp_path_factory.mktemp("campaigns")
    dice = random.Random(int(request.config.getoption("--kill-seed")))
    data_dirs: list[Path] = []

    def start(name: str, spec: dict[str, Any]) -> Campaign:
        data_dir = folder / name
        data_dirs.append(data_dir)
        shutil.copytree(charts, data_dir / "cache")
        env = {
            **prefect_env,
            "PREFECT_API_URL": prefect_api,
            "ASSAYLINE_DATA_DIR": str(data_dir),
            "ASSAYLINE_LOCK_DIR": str(folder / "locks"),
            "ASSAYLINE_FLUSH_INTERVAL_S": "0.3",
            "ASSAYLINE_LOAD_INTERVAL_S": "2",
            "ASSAYLINE_DEVICE_WAIT_S": "20",
        }
        spec_file = flow_kit.write_spec(folder / f"{name}.yaml", spec)
        return Campaign(env, spec_file, data_dir, folder / f"{name}.log", dice)

    yield start
    for data_dir in data_dirs:
        flow_kit.kill_all(flow_kit.processes_of(data_dir))


@pytest.fixture(scope="module")
def size(request: pytest.FixtureRequest) -> tuple[int, int]:
    """Repeats and workers: few kills hit within few seconds of one engine's work; many want a run that is long."""
    return (4, 1) if int(request.config.getoption("--kills")) <= len(VICTIMS) else (20, 2)


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


def test_kills_leave_every_request_answered_once_with_the_same_text(
    campaigns, tiny_model, size, request, record_property
):
    wanted, seed = int(request.config.getoption("--kills")), int(request.config.getoption("--kill-seed"))
    requests = size[0] * len(PROMPTS.read_text(encoding="utf-8").splitlines())
    expected: dict[str, str] = {}
    kills: Counter[str] = Counter()
    attempts = resumed = recovered = lost = twice = wrong = runs = 0
    while (left := wanted - sum(kills.values())) > 0:
        assert runs <= wanted, "runs end without being hurt"
        campaign = campaigns(f"campaign-{runs}", spec_of(tiny_model, PROMPTS, *size))
        if wanted == len(VICTIMS):
            campaign.victims = [victim for victim in VICTIMS if not kills[victim]]
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
        lost += requests - len(found)
        twice += answers - len(found)
        expected = expected or found
        wrong += sum(found[request_id] != text for request_id, text in expected.items() if request_id in found)
        wrong += sum(texts > 1 for texts in flow_kit.query(campaign.data_dir, TEXTS_OF_PROMPTS))
        (accuracy,) = flow_kit.query(campaign.data_dir, "select accuracy from run_summary")
        assert accuracy > 0.5
    counts = {
        "kills": sum(kills.values()), **{f"{victim}_kills": kills[victim] for victim in VICTIMS}, "runs": runs,
        "attempts": attempts, "resumed_attempts": resumed, "kills_survived_within_an_attempt": recovered,
        "requests_per_run": requests, "lost": lost, "twice": twice, "other_texts": wrong, "seed": seed,
    }  # fmt: skip
    for name, value in counts.items():
        record_property(name, value)
    print(json.dumps(counts))
    assert (lost, twice, wrong) == (0, 0, 0) and counts["kills"] == wanted


VERDICT = r'\{"verdict": "(correct|incorrect)"\}'
"""A tiny model that is free to write white space between the tokens of JSON writes nothing else."""


def judged_spec(model: Path, prompts: Path, folder: Path) -> dict[str, Any]:
    """Return a spec whose answers another engine of the same model judges, some seconds long."""
    spec = spec_of(model, prompts, repeats=2, workers=1)
    judge = {
        "name": "judge",
        "model": str(model),
        "engine": spec["engine"],
        "prompts": {"source": {"kind": "run"}, "template": "{{ prompt }}"},
        "sampling": {"temperature": 0, "max_tokens": 64},
        "output": {"regex": VERDICT},
        "scorers": [{"kind": "verdict", "values": {"correct": 1, "incorrect": 0}}],
    }
    path = flow_kit.write_spec(folder / "judge.yaml", judge)
    return {**spec, "scorers": ["exact_match", {"kind": "judge", "name": "right", "spec": str(path), "retries": 0}]}


def digest_parts(data_dir: Path, run_id: str) -> dict[str, str]:
    """Return the digests of a run's parts."""
    parts = (data_dir / "runs" / run_id / "parts").rglob("*.parquet")
    return {str(part): hashlib.sha256(part.read_bytes()).hexdigest() for part in parts}


@pytest.mark.rare
def test_kills_of_judges_leave_every_answer_judged_once_and_the_judged_run_as_it_was(
    campaigns, tiny_model, tmp_path, request
):
    wanted = int(request.config.getoption("--kills"))
    campaign = campaigns("judged", judged_spec(tiny_model, PROMPTS, tmp_path))
    judged: dict[str, dict[str, str]] = {}

    def is_judging() -> bool:
        """Return whether a second run has begun; the parts of the first are then complete."""
        runs = sorted(path.parent for path in campaign.data_dir.glob("runs/*/run.json"))
        if len(runs) == 2 and not judged:
            judged[runs[0].name] = digest_parts(campaign.data_dir, runs[0].name)
        return len(runs) == 2

    campaign.may_shoot = is_judging
    code: int | None = None
    while code != 0:
        code = campaign.attempt(wanted - sum(campaign.kills.values()))
        assert campaign.attempts < wanted + 5, f"no end in sight; see {campaign.log}"
    [(run_id, before)] = judged.items()
    runs = flow_kit.query(campaign.data_dir, "select run_id, state from runs order by started_at")
    assert [state for _, state in runs] == ["completed", "completed"] and runs[0][0] == run_id
    assert digest_parts(campaign.data_dir, run_id) == before
    answers = 2 * len(PROMPTS.read_text(encoding="utf-8").splitlines())
    judgements = "select count(*), count(distinct (judged_prompt_id, judged_repeat_index)) from judgement"
    assert flow_kit.query(campaign.data_dir, f"{judgements} where status = 'judged'") == [(answers, answers)]
    scores = "select count(*) from scores where run_id = ? and scorer = 'right'"
    assert flow_kit.query(campaign.data_dir, scores, run_id) == [answers]
    assert flow_kit.query(campaign.data_dir, "select is_sound from request_integrity") == [True, True]
    print(json.dumps({"kills": dict(campaign.kills), "attempts": campaign.attempts, "answers": answers}))
    assert sum(campaign.kills.values()) == wanted
