"""Answers of a run and pairs of answers, as reports and the viewer show them, and the SQL that selects them.

An answer is a sample of a run, a prompt row × a repeat. The list of a page is selected by numbers alone, and texts are
read only of the answers that it shows: both together take 0.3 s of CPU for 100,000 answers.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import urlencode

from assayline.report.document import Quote, cut_quote
from assayline.store.database import Connection, Row, read_rows
from assayline.store.views import quote_text
from assayline.words import show_value

PAGE_ROWS = 50
EXCERPT_CHARACTERS = 200
HEAD_CHARACTERS, TAIL_CHARACTERS = 40, 140
"""Characters of a longer answer in a list: an answer after reasoning concludes at its end."""
WORDS = ("correct", "incorrect")
"""Labels without a judge; they are the verdicts of the rubric @correctness."""
MOST_KEYS = 9
OPTIONS = 26

SORTS = {
    "row": ("", "source_row, repeat_index"),
    "slow": (", one.e2e_s as longest_s", "longest_s desc nulls last"),
    "first": (", one.ttft_s as longest_s", "longest_s desc nulls last"),
    "long": (", one.output_tokens as longest", "longest desc nulls last"),
    "low": ("", "score nulls last"),
    "high": ("", "score desc nulls last"),
}
"""Columns and orders of lists."""
CHANGES = {"worse": "difference < 0", "better": "difference > 0", "same": "difference = 0", "all": "true"}
"""Pairs by the change of their score; all others are flips."""
CONDITIONS = {
    "score=right": "score.value = 1",
    "score=partly": "score.value > 0 and score.value < 1",
    "score=wrong": "score.value = 0",
    "score=none": "score.value is null",
    "cut=1": "one.finish_reason = 'length'",
    "label=any": "label.label is not null",
    "label=none": "label.label is null",
}
RUN_COLUMNS = """
    run_id, name, model, prompt_set, purpose, state, message, started_at, expected_requests, benchmark_id, baselines,
    tags, note, accuracy, accuracy_low, accuracy_high, output_tokens_per_s, verdict"""
CHOICES = ("name", "model", "purpose", "state")
RUN_CONDITIONS = {
    **{name: f"{name} = ${name}" for name in CHOICES},
    "tag": "list_contains(tags, $tag)",
    "text": "contains(lower(concat_ws(' ', run_id, name, model, prompt_set, purpose, benchmark_id, note, "
    "array_to_string(baselines, ' '), array_to_string(tags, ' '))), lower($text))",
}
FOUND = """
    and (
        one.request_id in (
            select request_id from main.answer
            where run_id = $run and contains(lower(concat(text, ' ', error_message)), lower($text))
        )
        or (one.prompt_id, one.occurrence) in (
            select (prompt_id, occurrence) from main.prompt
            where run_id = $run and contains(lower(concat(messages_json, ' ', target)), lower($text))
        )
    )"""
LISTED = """select
    one.run_id, one.request_id, one.prompt_id, one.occurrence, one.repeat_index, source_row{columns}
from {source}{joins}
where one.run_id = $run
    and coalesce(one.option_index, 0) = 0
    and coalesce(one.turn_index = one.turns - 1, true)"""
ASKED = "internal.one_request as one\nleft join main.prompt using (run_id, prompt_id, occurrence)"
ANSWERED = "main.request as one"
"""Sources of a list. The second one, which takes twice as long, is for selecting by columns of answers."""
JOINED = {
    "score": (
        ", score.value as score, score.extracted",
        """
left join main.score
    on score.run_id = $run and score.scorer = $scorer and score.prompt_id = one.prompt_id
    and score.occurrence = one.occurrence and score.repeat_index = one.repeat_index""",
    ),
    "label": (
        ", label.label",
        """
left join main.label
    on label.run_id = $run and label.rubric is not distinct from $rubric and label.prompt_id = one.prompt_id
    and label.occurrence = one.occurrence and label.repeat_index = one.repeat_index""",
    ),
}
"""Columns and joins of an answer's score and label. If nothing selects by them, only the rows of the page get them."""
PAIRED = """select
    ours.*, pairs.candidate_value, pairs.baseline_value, pairs.difference, theirs.request_id as baseline_request_id
from internal.pair_prompts($run, $baseline, pair_by := $pairing) as pairs
join ({listed} and one.repeat_index = 0) as ours
    on ours.prompt_id = pairs.prompt_id and ours.occurrence = pairs.occurrence
left join internal.one_request as theirs
    on theirs.run_id = $baseline and theirs.prompt_id = pairs.baseline_prompt_id
    and theirs.occurrence = pairs.baseline_occurrence and theirs.repeat_index = 0
    and coalesce(theirs.option_index, 0) = 0 and coalesce(theirs.turn_index = theirs.turns - 1, true)
where pairs.scorer = $scorer and {change}"""
FIGURES = "status", "ttft_s", "e2e_s", "output_tokens", "finish_reason", "error_kind"
TEXTS = (
    "".join(f", request.{name}" for name in FIGURES) + ", answer.text, prompt.target",
    """
join main.request on request.run_id = one.run_id and request.request_id = one.request_id
join main.answer on answer.run_id = one.run_id and answer.request_id = one.request_id
left join main.prompt
    on prompt.run_id = one.run_id and prompt.prompt_id = one.prompt_id and prompt.occurrence = one.occurrence""",
)
"""Columns and joins that the SQL to copy adds."""
PAIR_ORDER = "case when difference < 0 then 0 when difference > 0 then 1 else 2 end, abs(difference) desc"


@dataclass(frozen=True, slots=True)
class Filters:
    """Choices of a page's form and its URL; an empty one selects everything."""

    scorer: str = ""
    score: str = ""
    error: str = ""
    cut: str = ""
    label: str = ""
    text: str = ""
    change: str = ""
    sort: str = ""
    page: str = ""

    @classmethod
    def read(cls, given: Mapping[str, str]) -> "Filters":
        return cls(**{field.name: given.get(field.name, "") for field in fields(cls)})

    @property
    def number(self) -> int:
        """Return the number of the page, from 1."""
        return max(int(self.page), 1) if self.page.isdecimal() and len(self.page) < 9 else 1

    @property
    def active(self) -> dict[str, str]:
        """Return the choices that leave answers out, by name."""
        chosen = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in chosen.items() if value and name not in ("scorer", "sort", "page")}

    def link(self, given: Mapping[str, str] | None = None, **changes: str) -> str:
        """Return these choices as the query of a URL, after the names in `given`."""
        chosen = replace(self, **changes)
        named = {field.name: getattr(chosen, field.name) for field in fields(self)}
        return "?" + urlencode({**(given or {}), **{name: value for name, value in named.items() if value}})


@dataclass(frozen=True, slots=True)
class Query:
    """The list of a page: rows in an order."""

    text: str
    order: str
    values: dict[str, Any]
    joined: Sequence[tuple[str, str]] = ()
    """Columns and joins for the rows of a page only."""

    def write(self, number: int, *texts: tuple[str, str]) -> str:
        """Return the SQL of a page with its values, for a reader to copy; `texts` are more columns and joins."""
        return write_values(self._select(number, *texts), self.values)

    def read_plain(self, connection: Connection, number: int) -> list[Row]:
        """Read a page without texts, and one row more if there is a next one."""
        return self._rows(connection, self._select(number, more=1))

    def read(self, connection: Connection, number: int) -> list[Row]:
        """Read a page, and one row more if there is a next one."""
        rows = self.read_plain(connection, number)
        answers = _read_answers(connection, self.values["run"], [row["request_id"] for row in rows])
        ids = [found for row in rows if (found := row.get("baseline_request_id"))]
        others = _read_answers(connection, self.values["baseline"], ids) if ids else {}
        prompts = _read_prompts(connection, self.values["run"], [row["prompt_id"] for row in rows])
        unknown = dict.fromkeys((*FIGURES, "text", "target", "prompt"))
        return [
            {
                **unknown,
                **row,
                **answers.get(row["request_id"], {"status": "missing"}),
                **prompts.get((row["prompt_id"], row["occurrence"]), {}),
                "baseline_text": others.get(row.get("baseline_request_id", ""), {}).get("text"),
            }
            for row in rows
        ]

    def count(self, connection: Connection) -> int:
        """Return the number of rows over all pages."""
        return int(self._rows(connection, f"select count(*) as n from ({self.text})")[0]["n"])  # noqa: S608

    def find(self, connection: Connection, request_id: str) -> Row:
        """Read the place of an answer in the list: before, after, place and total; empty if it is not in it."""
        placed = f"""
            select
                *,
                lag(request_id) over listed as before,
                lead(request_id) over listed as after,
                row_number() over listed as place,
                count(*) over () as total
            from ({self.text})
            window listed as (order by {self.order})
            qualify request_id = $request
        """  # noqa: S608 - the text is ours
        return next(iter(self._rows(connection, placed, request=request_id)), {})

    def _select(self, number: int, *texts: tuple[str, str], more: int = 0) -> str:
        place = f"limit {PAGE_ROWS + more} offset {(number - 1) * PAGE_ROWS}"
        listed = f"{self.text}\norder by {self.order}\n{place}"
        if not (added := [*self.joined, *texts]):
            return listed
        columns, joins = ("".join(parts) for parts in zip(*added, strict=True))
        return f"with listed as (\n{listed}\n)\nselect one.*{columns}\nfrom listed as one{joins}\norder by {self.order}"

    def _rows(self, connection: Connection, text: str, **more: Any) -> list[Row]:
        values = {**self.values, **more}
        used = {name: values[name] for name in re.findall(r"\$(\w+)", text)}
        result = connection.execute(text, used)
        names = [column[0] for column in result.description or ()]
        return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def write_values(text: str, values: Mapping[str, Any]) -> str:
    """Return the SQL with its values in place of their names."""
    written = {name: "null" if value is None else quote_text(value) for name, value in values.items()}
    return re.sub(r"\$(\w+)", lambda found: written[found[1]], text)


def write_runs(given: Mapping[str, str]) -> Query:
    """Return the list of runs, as `model`, `state`, `tag`, `text` and `sort` select them."""
    order = {"accuracy": "accuracy desc nulls last", "speed": "output_tokens_per_s desc nulls last", "name": "name"}
    conditions = [RUN_CONDITIONS[name] for name in RUN_CONDITIONS if given[name]]
    text = f"select{RUN_COLUMNS}\nfrom main.run" + ("\nwhere " + "\n    and ".join(conditions) if conditions else "")
    return Query(text, order.get(given["sort"], "started_at desc") + ", run_id", {**given})


def list_answers(run_id: str, scorer: str | None, rubric: str | None, filters: Filters) -> Query:
    """Return the list of a run's answers."""
    values = {"run": run_id, "scorer": scorer, "rubric": rubric, "text": filters.text, "error": filters.error}
    chosen = [f"{name}={getattr(filters, name)}" for name in ("score", "cut", "label")]
    conditions = "".join(f"\n    and {CONDITIONS[one]}" for one in chosen if one in CONDITIONS)
    if filters.error:
        conditions += "\n    and one.error_kind " + ("is not null" if filters.error == "any" else "= $error")
    ranked, order = SORTS.get(filters.sort, SORTS["row"])
    first = [JOINED[name] for name in JOINED if f"{name}." in conditions or name in order.split()]
    columns, joins = ("".join(one[part] for one in first) for part in (0, 1))
    source = ANSWERED if filters.error or filters.cut or ranked else ASKED
    text = LISTED.format(source=source, columns=ranked + columns, joins=joins) + conditions + FOUND * bool(filters.text)
    later = [one for one in JOINED.values() if one not in first]
    return Query(text, f"{order}, request_id", values, later)


def list_pairs(
    run_id: str, baseline: str, pairing: str, scorer: str | None, rubric: str | None, filters: Filters
) -> Query:
    """Return the list of pairs of two runs, flips first: those that became worse, then those that became better."""
    listed = list_answers(run_id, scorer, rubric, filters)
    text = PAIRED.format(listed=listed.text, change=CHANGES.get(filters.change, "difference <> 0"))
    order = listed.order if filters.sort in SORTS else f"{PAIR_ORDER}, {listed.order}"
    return Query(text, order, {**listed.values, "baseline": baseline, "pairing": pairing}, listed.joined)


def _read_answers(connection: Connection, run_id: str, request_ids: Sequence[str]) -> dict[str, Row]:
    """Read what a list shows of answers. With ids in the query itself, only theirs are searched for duplicates."""
    query = f"""
        select
            request_id, finished_at_s - arrived_at_s as e2e_s, output_tokens, finish_reason, error_kind,
            coalesce(text, error_message) as said,
            case when length(said) > {EXCERPT_CHARACTERS} then left(said, {HEAD_CHARACTERS}) || ' … '
            || right(said, {TAIL_CHARACTERS}) else said end as text
        from internal.one_answer
        where run_id = ? and request_id in ({_ask(request_ids)})
    """  # noqa: S608 - a number of ours
    return {row["request_id"]: row for row in read_rows(connection, query, run_id, *request_ids)}


def _read_prompts(connection: Connection, run_id: str, prompt_ids: Sequence[str]) -> dict[tuple[str, int], Row]:
    query = f"""
        select
            prompt_id,
            occurrence,
            left(target, {EXCERPT_CHARACTERS}) as target,
            left(messages_json ->> '$[#-1].content', {EXCERPT_CHARACTERS}) as prompt
        from main.prompt
        where run_id = ? and prompt_id in ({_ask(prompt_ids)})
    """  # noqa: S608 - a number of ours
    rows = read_rows(connection, query, run_id, *prompt_ids)
    return {(row["prompt_id"], row["occurrence"]): row for row in rows}


def _ask(values: Sequence[str]) -> str:
    return ", ".join("?" * len(values)) or "null"


@dataclass(frozen=True, slots=True)
class RunChoices:
    """Choices that the forms of a run's pages have."""

    run: Row
    scorers: list[str]
    errors: list[str]
    questions: list[tuple[str | None, list[str]]]
    """Rubrics of the run's judges, with the labels that each one knows; without judges, WORDS."""

    def choose_scorer(self, filters: Filters) -> str | None:
        """Return the scorer that was chosen, or else the first."""
        return filters.scorer if filters.scorer in self.scorers else next(iter(self.scorers), None)


def read_choices(connection: Connection, run_id: str) -> RunChoices | None:
    """Read the choices of a run; None if the database lacks it."""
    rows = read_rows(connection, "select * from raw.runs where run_id = ?", run_id)
    if not rows:
        return None
    scorers = "select scorer from raw.scorers where run_id = ? order by ordinal, scorer"
    errors = "select distinct error_kind from raw.completions where run_id = ? and error_kind is not null order by all"
    questions = """
        select distinct rubric, arguments_json
        from internal.judge_run
        join raw.scorers on scorers.run_id = judge_run_id and kind = 'verdict'
        where judge_run.run_id = ? and not is_pairs
        order by rubric
    """
    known: dict[str | None, list[str]] = {}
    for row in read_rows(connection, questions, run_id):
        known.setdefault(row["rubric"], []).extend(_list_words(json.loads(row["arguments_json"])))
    return RunChoices(
        run=rows[0],
        scorers=[row["scorer"] for row in read_rows(connection, scorers, run_id)],
        errors=[row["error_kind"] for row in read_rows(connection, errors, run_id)],
        questions=[(rubric, list(dict.fromkeys(words))) for rubric, words in known.items()] or [(None, [*WORDS])],
    )


def _list_words(arguments: Mapping[str, Any]) -> list[str]:
    if not arguments.get("scale"):
        return [*(arguments.get("values") or {})]
    low, high = arguments["scale"]
    step = 1 if high - low < MOST_KEYS else (high - low) / (MOST_KEYS - 1)
    return [f"{low + step * place:g}" for place in range(round((high - low) / step) + 1)]


def read_answer(connection: Connection, run_id: str, request_id: str) -> Row | None:
    """Read an answer with all of its parts, its times, and the verdicts of judges."""
    row = read_whole_answers(connection, run_id, [request_id], _PARTS).get(request_id)
    if row is not None:
        row.update(*read_rows(connection, _TIMES, run_id, request_id))
        judges = "select list(distinct judge_run_id) from internal.judge_run where run_id = ? and not is_pairs"
        ((judge_run_ids,),) = connection.execute(judges, [run_id]).fetchall()
        key = (run_id, *_name_sample(row))
        row["verdicts"] = read_rows(connection, _VERDICTS, judge_run_ids, *key) if judge_run_ids else []
    return row


def read_whole_answers(
    connection: Connection, run_id: str, request_ids: Sequence[str], parts: Collection[str]
) -> dict[str, Row]:
    """Read answers of a run by request id: requests, texts and prompts in one query, then their scores, labels, options
    and turns_said, as `parts` names them.
    """
    if not request_ids:
        return {}
    rows = read_rows(connection, _ANSWER.format(_ask(request_ids)), run_id, *request_ids)
    prompt_ids = list({row["prompt_id"] for row in rows})
    for name, query in _PARTS.items():
        asked = [row for row in rows if name in parts and _has_part(row, name)]
        found: dict[tuple[Any, ...], list[Row]] = {}
        for one in read_rows(connection, query, run_id, prompt_ids) if asked else ():
            found.setdefault(_name_sample(one), []).append(one)
        for row in rows:
            row[name] = found.get(_name_sample(row), []) if row in asked else []
    return {row["request_id"]: row for row in rows}


def _name_sample(row: Row) -> tuple[Any, ...]:
    return row["prompt_id"], row["occurrence"], row["repeat_index"]


def _has_part(row: Row, name: str) -> bool:
    return (row["turns"] or 0) > 1 if name == "turns_said" else name != "options" or row["option_index"] is not None


def list_messages(row: Row) -> list[tuple[str, str]]:
    """Return the turns that were shown to the model, each with its role; of a conversation with its answers."""
    if not row["turns_said"]:
        return _read_messages(row["messages_json"] or row["asked_json"])
    said: list[tuple[str, str]] = []
    for turn in row["turns_said"]:
        said += [*_read_messages(turn["turn_messages_json"]), ("assistant", turn["text"] or "")]
    return said[:-1]


def _read_messages(text: str | None) -> list[tuple[str, str]]:
    found = []
    for message in json.loads(text or "[]"):
        content = message.get("content")
        if isinstance(content, list):
            content = "\n".join(part.get("text") or f"[{part.get('type')}]" for part in content)
        found.append((str(message.get("role")), str(content or "")))
    return found


def show_answer(row: Row, scorer: str | None) -> list[Quote]:
    """Return the texts of an answer: reasoning, what was said, what the scorer read, and the target."""
    extracted = next((one["extracted"] for one in row["scores"] if one["scorer"] == scorer), None)
    is_extracted = extracted is not None and extracted != (row["text"] or "").strip()
    return [
        *([cut_quote("Reasoning", row["reasoning"])] if row["reasoning"] else []),
        _quote_answer(row),
        *([cut_quote("Extracted answer", extracted)] if is_extracted else []),
        cut_quote("Target", row["target"]),
    ]


def show_prompt(row: Row) -> Quote:
    """Return the prompt as the model read it, or else its messages."""
    said = [f"{role}: {text}" for role, text in list_messages(row)]
    return cut_quote("Rendered prompt", row["rendered"] or "\n".join(said) or None)


def _quote_answer(row: Row) -> Quote:
    if row["error_kind"]:
        return cut_quote("Error", row["error_message"])
    if not row["options"]:
        return cut_quote("Output", row["text"])
    lines = [
        f"{one['option'][:EXCERPT_CHARACTERS]}  (log-probability {show_value(one['option_logprob'])})"
        for one in row["options"][:OPTIONS]
    ]
    return cut_quote("Options", "\n".join(lines))


_ANSWER = """
    select
        one_request.* exclude (prompt_token_ids), prompt.source_row,
        prompt.target, prompt.messages_json as asked_json, prompt.metadata_json, text, reasoning, finish_reason,
        error_kind, error_message
    from internal.one_request
    left join internal.one_answer using (run_id, request_id)
    left join main.prompt using (run_id, prompt_id, occurrence)
    where one_request.run_id = ? and one_request.request_id in ({})
"""
_TIMES = "from main.request where run_id = ? and request_id = ?"
_SAMPLES = "run_id = ? and list_contains(?::varchar[], prompt_id)"
_PARTS = {
    "scores": f"from main.score where {_SAMPLES} order by kind, scorer",
    "labels": f"from main.label where {_SAMPLES} order by labelled_at",
    "options": f"from main.answer where {_SAMPLES} and option_index is not null order by option_index",
    "turns_said": f"from main.answer where {_SAMPLES} and turn_index is not null order by turn_index",
}
_VERDICTS = """
    select judge_run_id, scorer, status, verdict, value, reason
    from internal.find_judgements(?::varchar[])
    where (judged_run_id, judged_prompt_id, judged_occurrence, judged_repeat_index) = (?, ?, ?, ?)
    order by judge_run_id, scorer
"""
