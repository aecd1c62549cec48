"""A run's manifest, `run.json` in its folder: all that is needed to resume the run and to restore its row in `runs`.

Manifest and part files are the source of truth: `assayline db rebuild` restores the database from them. The manifest is
replaced atomically and synced, so that a crash leaves the old one or the new one. Scorers that `assayline score` added
to those of the spec are in `scorers.json` in the same folder.
"""

import contextlib
import difflib
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from assayline.clock import UNKNOWN, RunClock
from assayline.errors import SpecError, StoreError
from assayline.files import MAKE_ROOM, read_kept, write_json
from assayline.spec.core_yaml import load_yaml
from assayline.spec.criteria import Scorer, list_kinds
from assayline.spec.file import explain
from assayline.words import as_sentence

MANIFEST_NAME = "run.json"
SPEC_NAME = "spec.json"

IMPORTED = "imported"
"""State of a run of another tool, and kind of its source. It counts like a completed one."""
ENDED_WELL = ("completed", IMPORTED)
IMPORTS = ("import", "totals")
"""Purposes of imported runs: with the rows of their files, and with numbers alone. A partial one is `cancelled`."""

AUTO, NEVER = "auto", "never"
"""Which run is resumed: the newest that can be, or none; else the id of one."""
TAG = re.compile(r"\w[\w.:=/-]{0,63}")
JOB_VARIABLES = (
    "SLURM_JOB_ID", "SLURM_CLUSTER_NAME", "SLURM_JOB_PARTITION", "SLURM_JOB_NODELIST", "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID", "RAY_CLUSTER_NAME", "POD_NAME", "NODE_NAME",
)  # fmt: skip
LAST = "last"
"""Name of the newest run on a command line."""
SECOND = len("20260101-000000")
"""Length of the time at the start of a run id."""


@dataclass(frozen=True, slots=True)
class PromptCounts:
    """Counts of a prepared prompt set."""

    prompt_rows: int
    duplicate_prompts: int
    requests: int
    """All requests, including those that failed in preparation."""
    failed_requests: int
    shards: int
    is_complete: bool = True
    """Whether the prompt set was read to its end."""
    expected_requests: int = 0
    """Requests ordered by the length of their answers in earlier runs."""
    cut_prompts: dict[str, int] = field(default_factory=dict)
    """Number of prompts truncated on the left to fit the context, by task of lm-evaluation-harness."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One run. Fields with the name of a column of `runs` have the same meaning."""

    run_id: str
    name: str
    spec_hash: str
    prompt_set: str
    model: str
    model_id: str | None
    """None, like the next two, for an imported run."""
    tokenizer_id: str | None
    sampling_id: str | None
    inputs: dict[str, str] | None
    """SHA-256 by input file (`digest_inputs`); None if one of them has no digest."""
    inputs_digest: str | None
    clock: RunClock
    """The run's clock: time zero is the start of its first attempt."""
    host_name: str
    job: dict[str, str] = field(default_factory=dict)
    """Where the last attempt ran, by environment variable: the job and nodes of Slurm, the job of Ray, the pod."""
    assayline_version: str
    table_version: int
    """Version of the raw tables at the newest part file; earlier parts may have an older version."""
    machine: str | None = None
    purpose: str = "evaluate"
    config_id: str | None = None
    tags: list[str] = field(default_factory=list)
    note: str | None = None
    """Like the tags, words of a person about the run, which may change later."""
    benchmark_id: str | None = None
    """Id of the benchmark to which the run belongs."""
    suite_id: str | None = None
    """Id of the suite that began it."""
    attempt: int = 1
    state: str = "running"
    """running, completed, failed, cancelled or imported. A killed run stays `running`; its lock is free, and the
    database shows it as `interrupted`."""
    is_final: bool = False
    """Whether the run cannot be resumed, because no request is left to send or its prompts changed."""
    finished_at: str | None = None
    message: str | None = None
    """Error or reason that ended it, if it is not completed; else why it lacks scores of judges."""
    template_id: str | None = None
    """Digest of the chat template; None until the first prompt is rendered, and until then the database has no row."""
    prompts: PromptCounts | None = None
    """Set when all requests are in parts."""
    is_longest_first: bool = False
    """Whether requests are ordered by the expected lengths of their answers; a run keeps its order."""
    has_lengths: bool = False
    """Whether a file with the expected lengths of answers is in the run's folder."""
    is_deployed: bool = False
    """Whether a deployed flow began it, such as a nightly one; other commands resume it only by its id."""
    flow_run_id: str | None = None
    """Id in Prefect of the outermost flow run that began it. A retry of that flow run resumes the run."""
    lacks_report: bool = False
    """Whether it is completed, but scores of judges, its report or its page in Prefect may be missing; the same command
    adds them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Purpose:
    """The purpose of a run, and which run may be resumed instead of a new one."""

    kind: str = "evaluate"
    """As in runs.purpose."""
    resume: str = AUTO
    campaign_id: str | None = None
    run_id: str | None = None
    """The id of a new run, if the campaign chose it."""
    begun: tuple[str, ...] = ()
    """Ids of the campaign's runs that may be resumed."""
    baseline: str | None = None
    """Name or id of the run that a night is judged against, before its report is written."""
    is_measured: bool = False
    """Whether its speed is compared with that of other runs of the campaign."""
    has_page: bool = True
    """Whether its report follows its last answer; else the campaign writes it, with a verdict."""
    tags: tuple[str, ...] = ()
    """Tags of the run; a resumed run gets them, too."""

    def owns(self, run: Manifest) -> bool:
        """Return whether `auto` may resume the run: a campaign goes on with its own runs, and others with others."""
        if self.campaign_id is not None:
            return run.run_id in self.begun
        return run.suite_id is None and run.benchmark_id is None


def read_job(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that name this process's job in Slurm and Ray, and its pod and node in Kubernetes."""
    found = {name: environ[name] for name in JOB_VARIABLES if environ.get(name)}
    if "KUBERNETES_SERVICE_HOST" in environ and (pod := environ.get("HOSTNAME")):
        found.setdefault("POD_NAME", pod)
    with contextlib.suppress(ValueError, KeyError, TypeError):
        found["RAY_JOB_ID"] = json.loads(environ["RAY_JOB_CONFIG_JSON_ENV_VAR"])["metadata"]["job_submission_id"]
    return found


def change_tags(tags: Sequence[str], add: Sequence[str], drop: Sequence[str] = ()) -> list[str]:
    """Return the tags with these added and dropped, sorted. Raises SpecError for one that is not a word."""
    for tag in add:
        if not TAG.fullmatch(tag):
            raise SpecError(
                f"{tag!r} is not a valid tag. hint: use up to 64 letters, digits, dots, colons, equals signs, dashes, "
                "slashes and underscores, starting with a letter or digit."
            )
    return sorted({*tags, *add} - {*drop})


def write_manifest(run_dir: Path, manifest: Manifest) -> None:
    """Replace the manifest durably. Raises StoreError if the file system refuses."""
    hint = f"{MAKE_ROOM} Then run the same command again; results stored so far are kept."
    write_json(run_dir / MANIFEST_NAME, asdict(manifest), hint)


def read_manifest(run_dir: Path) -> Manifest:
    """Read the manifest in a run's folder. Raises StoreError if it is missing or unreadable."""
    path = run_dir / MANIFEST_NAME
    try:
        data: dict[str, Any] = json.loads(path.read_bytes())
        known = {one.name for one in fields(Manifest)}
        values = {name: value for name, value in data.items() if name in known}
        values["clock"] = RunClock(**data["clock"])
        values["prompts"] = PromptCounts(**data["prompts"]) if data["prompts"] else None
        return Manifest(**values)
    except FileNotFoundError:
        raise StoreError(
            f"{run_dir} has no {MANIFEST_NAME}: it is not a run's folder, or one of an earlier assayline. hint: check "
            "the path; part files can be read with read_parquet."
        ) from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise StoreError(
            f"Manifest {path} cannot be read: {type(error).__name__}: {error}. hint: restore it from a "
            "copy; without it the run cannot be resumed or rebuilt."
        ) from None


def list_manifests(runs_dir: Path) -> list[Manifest]:
    """Return all readable manifests of a data folder, newest run first.

    Runs of one boot are in the order of its monotonic clock, even if the wall clock was set back between them.
    """
    found: list[Manifest] = []
    for path in runs_dir.glob(f"*/{MANIFEST_NAME}"):
        try:
            found.append(read_manifest(path.parent))
        except StoreError:
            continue  # asking for the run by its id raises the error
    latest: dict[str, float] = {}
    order: dict[str, tuple[float, float]] = {}
    for run in sorted(found, key=lambda run: (run.clock.started_monotonic_s, run.clock.started_wall_s)):
        boot = run.run_id if run.clock.boot_id == UNKNOWN else run.clock.boot_id
        latest[boot] = max(latest.get(boot, 0.0), run.clock.started_wall_s)
        order[run.run_id] = latest[boot], run.clock.started_monotonic_s
    return sorted(found, key=lambda run: (*order[run.run_id], run.run_id), reverse=True)


def match_run_id(given: str, run_ids: Sequence[str]) -> str | None:
    """Return the run id that matches an id, the beginning of one, or `last`; None if there is none.

    `run_ids` is ordered newest first. Raises SpecError if several ids begin with `given`.
    """
    if given in run_ids:
        return given
    found = run_ids[:1] if given == LAST else [run_id for run_id in run_ids if given and run_id.startswith(given)]
    if len(found) > 1:
        raise SpecError(
            f"Run id {given!r} is ambiguous: {len(found)} runs begin with it, the newest are {', '.join(found[:3])}. "
            "hint: give more of the id; `assayline list runs` lists them."
        )
    return found[0] if found else None


def list_run_ids(runs_dir: Path) -> list[str]:
    """Return the names of the runs' folders, newest first: each begins with its second, whose ties manifests break."""
    ids = sorted((path.name for path in runs_dir.glob("*") if path.is_dir()), reverse=True)
    newest = [run_id for run_id in ids if run_id[:SECOND] == ids[0][:SECOND]]
    started_s = dict.fromkeys(newest, 0.0)
    for run_id in newest if len(newest) > 1 else ():
        with contextlib.suppress(StoreError):
            started_s[run_id] = read_manifest(runs_dir / run_id).clock.started_wall_s
    return sorted(newest, key=lambda run_id: started_s[run_id], reverse=True) + ids[len(newest) :]


def find_run(runs_dir: Path, run_id: str) -> Path:
    """Return the folder of a run. Raises SpecError with the nearest or newest ids if there is none."""
    ids = list_run_ids(runs_dir)
    if run_id in ids:
        return runs_dir / run_id
    raise unknown_run(run_id, ids, str(runs_dir))


def unknown_run(run_id: str, run_ids: Sequence[str], where: str) -> SpecError:
    """Return the error for an unknown run id. `run_ids` is ordered newest first."""
    close = difflib.get_close_matches(run_id, run_ids, n=3, cutoff=0.6)
    told = f"nearest: {', '.join(close)}" if close else f"newest: {', '.join(run_ids[:3]) or 'none yet'}"
    return SpecError(f"Run {run_id!r} is not in {where} ({told}). hint: `assayline list runs` lists them.")


def read_spec_json(run_dir: Path) -> str:
    """Return the canonical spec of a run as JSON, with the field names of its version. Raises StoreError."""
    path = run_dir / SPEC_NAME
    try:
        text = path.read_text(encoding="utf-8")
        json.loads(text)
    except (OSError, ValueError) as error:
        raise StoreError(
            f"Spec {path} cannot be read: {error}. hint: restore it from a copy, or start a new run."
        ) from None
    return text


def new_run_id(name: str, clock: RunClock) -> str:
    """Return a sortable, readable run id: UTC time, the spec's name, and four random hex digits."""
    when = datetime.fromtimestamp(clock.started_wall_s, UTC).strftime("%Y%m%d-%H%M%S")
    return f"{when}-{slugify(name)}-{uuid.uuid4().hex[:4]}"


def slugify(name: str) -> str:
    """Return a spec's name as a part of its runs' ids."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "run"


SCORERS_NAME = "scorers.json"
_ONE: TypeAdapter[Scorer] = TypeAdapter(Scorer)


def read_run_scorers(run_dir: Path, spec: dict[str, Any]) -> list[Scorer]:
    """Return all scorers of a run, the most important one first. `spec` is the run's spec as parsed JSON.

    An added scorer replaces the scorer of the same name. Raises StoreError for an unreadable file.
    """
    given = spec.get("scorers")
    if given is None:  # a task has its own metrics
        given = [] if spec["prompts"]["source"]["kind"] == "lm_eval" else [{"kind": "exact_match"}]
    first = [_ONE.validate_python(scorer) for scorer in given]
    return list({scorer.title: scorer for scorer in [*first, *_read_added(run_dir)]}.values())


def merge_scorers(scorers: Sequence[Scorer], more: Sequence[Scorer]) -> list[Scorer]:
    """Return the scorers with `more` appended; a scorer of the same name is replaced in place."""
    return list({scorer.title: scorer for scorer in [*scorers, *more]}.values())


def keep_added(run_dir: Path, more: Sequence[Scorer]) -> None:
    """Add scorers to those kept in the run's folder. Raises StoreError."""
    kept = [scorer.model_dump(mode="json") for scorer in merge_scorers(_read_added(run_dir), more)]
    write_json(run_dir / SCORERS_NAME, kept, MAKE_ROOM)


def parse_scorer(text: str) -> Scorer:
    """Parse a scorer from the command line: a kind, or a mapping as in a spec. Raises SpecError."""
    try:
        return _ONE.validate_python(load_yaml(text))
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split())
        raise SpecError(f"--scorer {text!r} is neither a kind nor a YAML mapping: {problem}.") from None
    except ValidationError as error:
        kinds = list_kinds()
        problems = "; ".join(explain(error, list(kinds.values()), "the scorer"))
        raise SpecError(
            f"--scorer {text!r}: {as_sentence(problems)} hint: give a kind ({', '.join(kinds)}), or a mapping such as "
            "'{kind: regex, pattern: \"answer: (.*)\"}'."
        ) from None


def _read_added(run_dir: Path) -> list[Scorer]:
    def parse(text: str) -> list[Scorer]:
        return [_ONE.validate_python(scorer) for scorer in json.loads(text)]

    hint = "remove it and score the run again."
    return read_kept(run_dir / SCORERS_NAME, parse, [], "the scorers added to the run", hint)
