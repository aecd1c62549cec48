"""Report section about judges: how far their verdicts can be trusted, what they found, and what they cost."""

from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from assayline.comparison.judges import audit_judges
from assayline.report.answers import list_messages, read_whole_answers
from assayline.report.document import (
    Column,
    Paragraph,
    Part,
    Sample,
    Section,
    cut_quote,
    make_section,
    tabulate,
)
from assayline.report.measures import spread
from assayline.store.database import Connection, Row, read_rows
from assayline.store.metrics import ensure_metrics, list_judging_costs
from assayline.words import (
    count,
    show_kappa,
    show_money,
    show_name,
    show_number,
    show_points,
    show_range,
    show_seconds,
    show_value,
)

RUBRICS = 6
JUDGES = 20
"""Maximum number of judge runs of a rubric that are shown: the newest."""
WORST = 5
DISAGREEMENTS = 5


@dataclass(frozen=True, slots=True)
class Rubric:
    """One question that judges answered about a run's answers."""

    name: str
    models: dict[str, str]
    """Models by judge run."""
    audits: list[Row]
    """Rows of audit_judges: judge runs, then the panel."""
    worst: list[Row]
    disagreements: list[Row]
    min_kappa: float | None


@dataclass(frozen=True, slots=True)
class JudgeRows:
    """Judges of a run's answers, and the runs whose answers it judges itself."""

    sources: list[Row]
    """Runs whose answers are the prompts of this run."""
    rubrics: list[Rubric]
    costs: list[Row]
    """The run itself, its judges, and their sum; empty for a run without judges."""


def read_judges(connection: Connection, run_id: str) -> JudgeRows:
    """Read the judges of a stored run; for a judge, its own audit comes first."""
    sources = read_rows(connection, _SOURCES, run_id)
    is_judge = any(source["is_judge"] for source in sources)
    own = read_rows(connection, _OWN, run_id) if is_judge else []
    judges = read_rows(connection, "from judge_run where run_id = ? order by rubric, started_at desc", run_id)
    ensure_metrics(connection, [row["judge_run_id"] for row in judges])
    by_rubric = groupby([*own, *judges], key=itemgetter("run_id", "rubric"))
    found = [(rubric, list(rows)[:JUDGES]) for (_, rubric), rows in by_rubric]
    limits = {row["scorer"]: row["min_kappa"] for row in read_rows(connection, _LIMITS, run_id)}
    rubrics = [_read_rubric(connection, name, rows, limits.get(name)) for name, rows in found[:RUBRICS]]
    return JudgeRows(sources, rubrics, list_judging_costs(connection, run_id) if judges else [])


def _read_rubric(connection: Connection, name: str, judges: list[Row], min_kappa: float | None = None) -> Rubric:
    models = {row["judge_run_id"]: row["model"] for row in judges}
    audits = audit_judges(connection, list(models))
    worst, wrong = read_rows(connection, _SHOWN, False, WORST), read_rows(connection, _SHOWN, True, DISAGREEMENTS)
    _add_texts(connection, [*worst, *wrong])
    return Rubric(name, models, audits, worst, wrong, min_kappa)


def _add_texts(connection: Connection, rows: list[Row]) -> None:
    """Add the last user message, and the judged answers; None if their run is not in this database."""
    columns = ("run_id", "prompt_id", "occurrence", "repeat_index")
    sides = [[tuple(row[f"{side}_{name}"] for name in columns) for row in rows] for side in ("judged", "other")]
    named = ([key[place] for keys in sides for key in keys] for place in (0, 1))
    answers = {
        tuple(row[name] for name in columns): row
        for run_id, asked in groupby(read_rows(connection, _REQUESTS, *named), key=itemgetter("run_id"))
        for row in read_whole_answers(connection, run_id, [one["request_id"] for one in asked], ["turns_said"]).values()
    }
    for row, *keys in zip(rows, *sides, strict=True):
        judged, other = (answers.get(key, _UNKNOWN) for key in keys)
        asked = [said for role, said in list_messages(judged) if role == "user"]
        row |= {"prompt": asked[-1] if asked else None, "answer": judged["text"], "other_answer": other["text"]}


_UNKNOWN: Row = dict.fromkeys(("text", "messages_json", "asked_json", "turns_said"))


_LIMITS = """
    select scorer, (arguments_json ->> '$.min_kappa')::double as min_kappa
    from scorers
    where run_id = ? and kind = 'judge'
"""
_SOURCES = """
    with named as (
        select
            run_id,
            spec_json -> '$.prompts.source' as source,
            source ->> '$.kind' = 'pairs' as is_pairs,
            unnest(case
                when is_pairs then cast(source -> '$.runs' as varchar[])
                when source ->> '$.kind' = 'run' then [source ->> '$.run']
            end) as source_run_id
        from runs
        where run_id = ?
    )
    select
        source_run_id,
        is_pairs,
        named.run_id in (select run_id from scorers where kind = 'verdict') as is_judge,
        runs.name,
        runs.model
    from named
    left join runs on runs.run_id = source_run_id
    order by list_position(cast(source -> '$.runs' as varchar[]), source_run_id)
"""
_OWN = "select '' as run_id, name as rubric, run_id as judge_run_id, model from runs where run_id = ?"
_SHOWN = """
    select
        *,
        case when $1 then -abs(value - label_value) else value end as gap,
        avg(value) over same as mean_value,
        count(*) over same as judgements
    from verdict_of_judge
    where status = 'judged' and ($1 or other_run_id is null)
    window same as (partition by scorer, answer)
    qualify case when $1 then gap < -1e-6 else mean_value < 1 end
        and row_number() over (partition by answer order by gap, judge_run_id, scorer, prompt_id, repeat_index) = 1
    order by case when $1 then gap else mean_value end,
        judged_prompt_id, judged_run_id, judged_occurrence, judged_repeat_index, other_run_id
    limit $2
"""
"""Answers whose verdict differs from the label, the widest difference first; or answers with a verdict below the best,
the lowest mean first, without pairs. Of several verdicts on an answer, the one farthest from the label, or the lowest.
Ties are broken by prompt_id, a digest, so they come from anywhere in the file."""
_REQUESTS = """
    select distinct run_id, request_id
    from raw.requests
    where run_id in (select unnest($1::varchar[])) and prompt_id in (select unnest($2::varchar[]))
        and coalesce(option_index, 0) = 0 and coalesce(turn_index = turns - 1, true)
    order by all
"""


JUDGE = Column("judge", "judge", show_name)
AUDIT = (
    JUDGE,
    Column("requests", "requests", show_value),
    Column("verdicts", "judged_requests", show_value),
    Column("unreadable", "unreadable_requests", show_value),
    Column("errors", "error_requests", show_value),
    *spread("mean verdict", "raw_share"),
    *spread("corrected", "corrected_share"),
    Column("run", lambda row: None if len(row["judges"]) > 1 else row["judges"][0], show_name),
)
AGREEMENT = (
    JUDGE,
    Column("labels", "labelled_requests", show_value),
    Column("unknown labels", "unknown_labels", show_value),
    *spread("agreement", "agreement"),
    *spread("kappa", "kappa", show_kappa),
    *spread("weighted kappa", "weighted_kappa", show_kappa),
    *spread("sensitivity", "sensitivity"),
    *spread("specificity", "specificity"),
)
CONSISTENCY = (
    JUDGE,
    Column("repeated answers", "repeated_samples", show_value),
    *spread("flip share", "flip_share"),
    Column("alpha", "nominal_alpha", show_kappa),
    Column("interval alpha", "interval_alpha", show_kappa),
    *spread("position bias", "position_bias", show_points),
    *spread("same winner in both orders", "consistent_share"),
    *spread("length bias", "length_bias", show_points),
)
CONSISTENCY_KEYS = ("flip_share", "position_bias", "length_bias")
PARTS = {"model": "model", "judge": "judge", "judges": "all judges"}
COSTS = (
    Column("part", lambda row: PARTS[row["part"]] + (f", {row['rubric']}" if row["rubric"] else "")),
    Column("model", "model", show_name),
    Column("state", "state"),
    Column("load time", "load_s", show_seconds),
    Column("generating", "duration_s", show_seconds),
    Column("output tokens", "output_tokens", show_value),
    Column("cost", lambda row: show_money(row["cost"], row["currency"]), show_number),
    Column("run", "run_id", show_name),
)


def describe_judges(judges: JudgeRows) -> Section | None:
    """Build the section: agreement with labels, verdicts, biases and cost; None for a run without judges."""
    if not judges.rubrics:
        return None
    is_corrected = any(audit["corrected_share"] is not None for one in judges.rubrics for audit in one.audits)
    return make_section(
        "judges",
        "Judges",
        _say_sources(judges.sources) if any(source["is_judge"] for source in judges.sources) else None,
        map(_describe_rubric, judges.rubrics),
        "“corrected” adds the mean difference between labels and verdicts to the mean verdict. It is right only if "
        "the labelled answers are a random subset of the judged ones."
        if is_corrected
        else None,
        tabulate("Time and cost of the model and of judging", COSTS, judges.costs),
    )


def name_source(source: Row) -> str:
    """Return the id of a run whose answers are prompts, with its name and model if the database has it."""
    known = source["name"] is not None
    return f"{source['source_run_id']} ({source['name']}, {source['model']})" if known else str(source["source_run_id"])


def say_distrust(judges: JudgeRows) -> list[str]:
    """Name each judge or panel that agrees with the labels less than its min_kappa."""
    said = []
    for rubric in judges.rubrics:
        least = rubric.min_kappa
        panel = [audit["kappa"] for audit in rubric.audits if len(audit["judges"]) > 1]
        kappas = panel or [audit["kappa"] for audit in rubric.audits]
        kappa = None if None in kappas else min(kappas, default=None)
        if least is not None and (kappa is None or kappa < least):
            said.append(f"Judge not trusted: kappa {show_kappa(kappa)}, min_kappa {least:g} ({rubric.name}).")
    return said


def say_agreement(audit: Row) -> str:
    """Say whether a judge or panel agrees with labels beyond chance."""
    labels = count(audit["labelled_requests"], "labelled verdict")
    if not audit["judged_requests"]:
        return "No verdict can be read."
    if not audit["labelled_requests"]:
        if audit["unknown_labels"]:
            return (
                f"Agreement with people is unknown: {count(audit['unknown_labels'], 'label')} "
                f"{'is' if audit['unknown_labels'] == 1 else 'are'} none of the verdicts."
            )
        return "Agreement with people is unknown: no verdict has a label."
    if audit["kappa"] is None:
        return f"Agreement beyond chance is undefined: the labels of all {labels} are equal."
    key = _choose_kappa(audit)
    name = key.replace("_", " ")
    value, low, high = (audit[f"{key}{end}"] for end in ("", "_low", "_high"))
    if low is None:
        why = "every label agrees" if value == 1 else "there are too few labelled prompts, or no variance"
        return f"{name.capitalize()} is {show_kappa(value)} over {labels}, without an interval: {why}."
    found = f"{name} {show_kappa(value)}, 95% interval {show_range(show_kappa(low), show_kappa(high))}, {labels}"
    if low > 0:
        return f"Agrees with the labels beyond chance: {found}."
    if high < 0:
        return f"Disagrees with the labels more often than chance: {found}."
    return f"No evidence that it agrees with the labels beyond chance: {found}."


def _choose_kappa(audit: Row) -> str:
    """Return the column of kappa: of a scale the weighted one, which counts near misses."""
    return "kappa" if audit["weighted_kappa"] is None else "weighted_kappa"


def say_biases(audit: Row) -> list[str]:
    """Say which answer of a pair a judge prefers for its place or length; empty without pairs."""
    said = []
    if audit["position_bias_low"] is not None:
        value, low, high = (audit[f"position_bias{end}"] for end in ("", "_low", "_high"))
        found = f"{show_points(value)}, 95% interval {show_range(show_points(low), show_points(high))}"
        if low <= 0 <= high:
            said.append(f"No evidence that the order of a pair matters: position bias {found}.")
        else:
            said.append(f"It prefers the answer shown {'first' if value > 0 else 'second'}: position bias {found}.")
    if audit["length_bias_low"] is not None and not audit["length_bias_low"] <= 0 <= audit["length_bias_high"]:
        which = "longer" if audit["length_bias"] > 0 else "shorter"
        said.append(f"The {which} answer wins more often, which is a bias only if people disagree.")
    return said


def _describe_rubric(rubric: Rubric) -> list[Part]:
    audits = [{**audit, "judge": _name_judge(rubric, audit)} for audit in rubric.audits]
    is_labelled = any(audit["labelled_requests"] or audit["unknown_labels"] for audit in audits)
    is_repeated = any(audit[key] is not None for audit in audits for key in CONSISTENCY_KEYS)
    return [
        *(_say_audit(rubric.name, audit) for audit in audits),
        tabulate(f"{rubric.name}: verdicts", AUDIT, audits),
        tabulate(f"{rubric.name}: agreement with labels", AGREEMENT, audits * is_labelled),
        tabulate(f"{rubric.name}: consistency and biases", CONSISTENCY, audits * is_repeated),
        *(_show_judgement(f"{rubric.name}: low verdict", rubric, row) for row in rubric.worst),
        *(_show_judgement(f"{rubric.name}: disagrees with the label", rubric, row) for row in rubric.disagreements),
    ]


def _say_audit(name: str, audit: Row) -> Paragraph:
    said = [say_agreement(audit), *say_biases(audit)]
    if lost := audit["unreadable_requests"] + audit["error_requests"]:
        said.append(
            f"{lost:,} of {count(audit['requests'], 'request')} gave no verdict and are left out, which is a bias "
            "if they are not a random part."
        )
    low = audit[f"{_choose_kappa(audit)}_low"]
    return Paragraph(f"{name}, {audit['judge']}: {' '.join(said)}", is_warning=low is not None and low <= 0)


def _name_judge(rubric: Rubric, audit: Row) -> str:
    if len(audit["judges"]) > 1:
        return f"panel of {len(audit['judges']):,} runs"
    return _shorten(rubric.models[audit["judges"][0]])


def _shorten(model: str) -> str:
    """Return a model's name without its folders, which the table of costs has."""
    return model.rstrip("/").rsplit("/", 1)[-1]


def _show_judgement(title: str, rubric: Rubric, row: Row) -> Sample:
    of = f", one of {row['judgements']:,} with mean {show_value(row['mean_value'])}" if row["judgements"] > 1 else ""
    facts = [("verdict", f"{row['verdict']}, value {show_value(row['value'])}{of}")]
    if row["label"] is not None:
        facts.append(("label", row["label"]))
    if row["first"] is not None:
        facts.append(("shown first", f"answer {row['first']}"))
    facts.append(("judge", _shorten(rubric.models[row["judge_run_id"]])))
    quotes = [
        cut_quote("Prompt", row["prompt"]),
        cut_quote("Answer" if row["first"] is None else "Answer a", row["answer"]),
    ]
    if row["first"] is not None:
        quotes.append(cut_quote("Answer b", row["other_answer"]))
    quotes.append(cut_quote("Reason", row["reason"]))
    repeat = f", repeat {row['judged_repeat_index']:,}" if row["judged_repeat_index"] else ""
    return Sample(f"{title}: prompt {row['judged_prompt_id'][:12]}{repeat}", facts, quotes)


def _say_sources(sources: list[Row]) -> str:
    names = [name_source(source) for source in sources]
    if sources[0]["is_pairs"]:
        return f"This run compares the answers of run a, {names[0]}, and run b, {names[1]}. A verdict's value is a's."
    return f"This run judges the answers of run {names[0]}."
