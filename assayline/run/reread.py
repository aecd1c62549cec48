"""A reread: an engine reads the stored answers of another one, and their probabilities are compared.

Three runs of kind reread: the reference's engine reads its own answers twice, the second time in other batches, which
shows how much it differs from itself; then the other engine reads them. The reference's readings are kept for later
rereads, which so can compare with an engine that is no longer installed.
"""

import json
from dataclasses import dataclass

from assayline.comparison.baselines import check_run, resolve_baseline
from assayline.comparison.gate import Check, GateReport
from assayline.comparison.reread import judge_reread
from assayline.engines.pool import EnginePool
from assayline.errors import ComparisonError, SpecError
from assayline.model import identify_spec_model
from assayline.requests.tokenizer import load_tokenizer
from assayline.run.begin import plan_run
from assayline.run.driver import FrontEnd
from assayline.run.judging import find_judge_run
from assayline.run.prepare import open_renderer
from assayline.run.stages import save_verdicts
from assayline.spec.evaluation import READ_SAMPLING, EvalSpec
from assayline.spec.file import parse_spec, parse_stored
from assayline.stats.worse import LEVEL
from assayline.store.answers import read_readable
from assayline.store.database import Connection, Row, read_rows
from assayline.store.manifest import AUTO, ENDED_WELL, NEVER, Purpose
from assayline.store.metrics import ensure_metrics
from assayline.store.thread import DatabaseThread

PROMPTS = 30
OTHER_SEATS = 3
"""Requests at once in the second reading."""
ENGINE_FIELDS = {"model", "adapter", "revision", "chat", "engine", "runner", "ray_address", "price"}
UNRENDERED = frozenset({"lm_eval", "openai_batch", "synthetic", "trace"})
"""Sources whose prompts are not chats."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A run whose answers are read."""

    run_id: str
    spec: EvalSpec
    machine: str | None
    vllm_version: str | None
    answers: list[Row]
    """Rows of `read_readable`."""


def reread(
    reference: str,
    spec: EvalSpec,
    front: FrontEnd,
    *,
    prompts: int = PROMPTS,
    max_kl: float | None = None,
    level: float = LEVEL,
    resume: str = AUTO,
    engines: EnginePool | None = None,
) -> GateReport:
    """Let the engine of a spec read answers of a run, judge it, and store the verdict of the reading.

    `max_kl`: limit in nats per token (default: three times what the reference's engine differs from itself). `resume`:
    `never` repeats the reference's readings, too. `engines`: where the spec's engine is left open.
    Raises SpecError, ComparisonError for other tokens or prompts, and the errors of an evaluation.
    """
    settings, database = front.settings, DatabaseThread(front.settings)
    settings.pass_on_token()
    known = database.run(lambda connection: find_reference(connection, reference, prompts))
    check_same_prompts(known, spec)
    reads: list[str] = []
    with EnginePool() as own:
        pool = engines or own
        for _ in range(2):
            reading = plan_reading(known, known.spec, reads, prompts)
            run_id = None if resume == NEVER else find_reading(reading, known, front)
            run_id = run_id or front.complete(reading, Purpose(kind="reread", resume=resume), reading.name, pool).run_id
            reads.append(run_id)
        _warn_of_version(known, reads, front)
        reading = plan_reading(known, spec, reads, prompts, is_reference=False)
        run_id = front.complete(reading, Purpose(kind="reread", resume=resume), reading.name, pool).run_id

    def judge(connection: Connection) -> GateReport:
        ensure_metrics(connection, [*reads, run_id])
        check = Check(**judge_reread(connection, run_id, known.run_id, max_kl, level))
        report = GateReport(run_id, known.run_id, [check], {"reread": {"max_kl": max_kl}})
        save_verdicts(connection, settings.data_dir, report, front.flow_run_id)
        return report

    return database.run(judge)


def find_reference(connection: Connection, given: str, prompts: int) -> Reference:
    """Find a run by its id, a pinned name or the start of an id, with its first answers. Raises SpecError."""
    run_id = resolve_baseline(connection, given)
    state = check_run(connection, run_id)
    if state not in ENDED_WELL:
        raise SpecError(f"Run {run_id} is {state}, not completed. hint: resume it, or name another run.")
    query = "select spec_json, machine, vllm_version from runs left join run_conditions using (run_id) where run_id = ?"
    [row] = read_rows(connection, query, run_id)
    spec = parse_stored(row["spec_json"], f"the spec of run {run_id}")
    return Reference(run_id, spec, row["machine"], row["vllm_version"], read_readable(connection, run_id, prompts))


def check_same_prompts(reference: Reference, spec: EvalSpec) -> None:
    """Raise SpecError for an engine that cannot read, ComparisonError if it has other tokens or writes other prompts.

    Then that is what differs, and probabilities of the same ids would say nothing.
    """
    plan_reading(reference, spec, [], PROMPTS, is_reference=False)
    own, other = identify_spec_model(reference.spec), identify_spec_model(spec)
    hint = "hint: probabilities are not compared; make model and chat of the spec equal first."
    has_own = any("tokenizer" in one.engine.args for one in (reference.spec, spec))
    if own.folder and other.folder and own.tokenizer_id != other.tokenizer_id and not has_own:
        tokenizers = load_tokenizer(own.folder), load_tokenizer(other.folder)
        before, after = (one.get_vocab() for one in tokenizers)
        if different := [token for token in before.keys() | after.keys() if before.get(token) != after.get(token)]:
            raise ComparisonError(
                f"The engines have different tokenizers: {len(different):,} of {len(before):,} tokens have another id, "
                f"such as {min(different)!r}. {hint}"
            )
        ids, others = (one("a")["input_ids"] for one in tokenizers)
        if reference.spec.prompts.source.kind in UNRENDERED and ids != others:  # such as a dropped BOS
            raise ComparisonError(f"The engines have different tokenizers: 'a' is {others}, not {ids}. {hint}")
    if reference.spec.prompts.source.kind in UNRENDERED:
        return
    renderer = open_renderer(spec, other)
    assert renderer.tokenizer is not None, "an engine that reads token ids has a tokenizer"
    asked = [
        (row["prompt_token_ids"], renderer.render(json.loads(row["messages_json"])).token_ids)
        for row in reference.answers
    ]
    if differ := [pair for pair in asked if pair[0] != pair[1]]:
        before, after = differ[0]
        shorter = min(len(before), len(after))
        place = next((n for n in range(shorter) if before[n] != after[n]), shorter)
        old, new = (renderer.tokenizer.decode(ids[place : place + 8]) for ids in (before, after))
        raise ComparisonError(
            f"The engines read different prompts: {len(differ)} of {len(asked)} rendered prompts differ. The first has "
            f"{len(after)} tokens, not {len(before)}, and differs from token {place + 1} on: {old!r} → {new!r}. {hint}"
        )


def plan_reading(
    reference: Reference, spec: EvalSpec, reads: list[str], prompts: int, *, is_reference: bool = True
) -> EvalSpec:
    """Return the spec of a reading by the engine of `spec`, to be compared with the readings `reads`.

    The second one by the reference's engine has other batches: another order, and few requests at once.
    """
    data = spec.model_dump(mode="json", include=ENGINE_FIELDS, exclude_defaults=True)
    engine = data.setdefault("engine", {})
    args = engine.get("args", {})
    args.pop("logprobs_mode", None)
    if 0 <= (args.get("max_logprobs") or -1) < READ_SAMPLING["prompt_logprobs"]:
        args["max_logprobs"] = READ_SAMPLING["prompt_logprobs"]
    source = {"kind": "reread", "run": reference.run_id, "reads": reads}
    by = "itself" if is_reference else spec.name
    data |= {"name": f"{reference.spec.name} read by {by}", "prompts": {"source": source, "limit": prompts}}
    data["prompts"]["name"] = f"answers of {reference.run_id}"
    if spec.adapter:  # vLLM maps adapters to requests, not to tokens, and fails at the prompts of several requests
        engine |= {"mode": "continuous", "max_concurrency": 1}
    if is_reference and reads:
        seats = OTHER_SEATS if not spec.adapter and engine.get("max_concurrency") != OTHER_SEATS else 1
        engine |= {"mode": "continuous", "max_concurrency": seats}
        data["name"], data["prompts"]["shuffle_seed"] = f"{data['name']} in other batches", 1
    return parse_spec(data, data["name"])


def find_reading(reading: EvalSpec, reference: Reference, front: FrontEnd) -> str | None:
    """Return the stored reading by the reference's engine, on this kind of machine; None if there is none."""
    plan = plan_run(reading, front.settings, Purpose(kind="reread"))
    found = find_judge_run(plan, front.settings)
    return found.run_id if found and found.machine == plan.fresh.machine else None


def _warn_of_version(reference: Reference, reads: list[str], front: FrontEnd) -> None:
    """Warn if the reference's engine was another vLLM when it answered than when it read."""
    query = "select distinct vllm_version from run_conditions where list_contains(?::varchar[], run_id)"
    rows = DatabaseThread(front.settings).run(lambda connection: read_rows(connection, query, reads))
    if reference.vllm_version and (others := {row["vllm_version"] for row in rows} - {reference.vllm_version, None}):
        front.log.warning(
            f"Run {reference.run_id} answered with vLLM {reference.vllm_version}, and its engine reads with "
            f"{', '.join(sorted(others))}: what differs between these is not compared. hint: set engine.python of its "
            "spec to a Python with the former one."
        )
