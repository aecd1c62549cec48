"""Results and samples of lm-evaluation-harness, as `lm_eval --output_path PATH --log_samples` writes them.

A document has the id that it has in a run with the source lm_eval, so that both kinds of runs pair. Samples are
streamed; with several filters, their file has all documents once per filter. Scores follow the last one.
"""

import ast
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from assayline.harness.build import identify_document, name_document
from assayline.harness.judge import join_tasks
from assayline.imports.rows import (
    Imported,
    RowMaker,
    Rows,
    Total,
    read_json,
    read_lines,
    read_number,
    read_time,
    score,
)
from assayline.imports.totals import SHARE, make_score
from assayline.prompts.targets import write_target
from assayline.records import Prompt
from assayline.store.score_files import HarnessScore
from assayline.words import count

TOOL = "lm-eval"
OWN = "assayline"
"""`model_source` of an export of this program, whose documents have their prompt_id."""


def read_results(path: Path) -> Iterator[Imported]:
    """Yield the run of a results file."""
    data = read_json(path)
    samples = _find_samples(path, list(data["configs"]))
    seconds, started_s = read_number(data.get("total_evaluation_time_seconds")), read_time(data.get("date"))
    scorers: dict[str, dict[str, Any]] = {}
    counted = {task: (sizes or {}).get("effective") for task, sizes in data.get("n-samples", {}).items()}
    sizes: list[Any] = [counted.get(task) for task in data["configs"]]
    limited = [
        f"{task}: {size['effective']:,} of {count(size['original'], 'document')} were asked, by --limit."
        for task, size in data.get("n-samples", {}).items()
        if size and (size.get("effective") or 0) < (size.get("original") or 0)
    ]
    yield Imported(
        tool=TOOL,
        version=data.get("lm_eval_version"),
        model=data.get("model_name") or data["config"]["model_args"]["pretrained"],
        prompt_set=_name_tasks(data),
        files=[path, *samples.values()],
        rows=_read_rows(data, samples, scorers) if samples else (),
        totals=list(_read_scores(data, counted)),
        started_s=started_s,
        finished_s=None if started_s is None or seconds is None else started_s + seconds,
        settings={
            name: {task: found.get(task) for task in data["configs"]}
            for name, found in (
                ("n-shot", data.get("n-shot", {})),
                ("versions", data.get("versions", {})),
                ("documents", counted),
            )
        },
        notes=limited,
        scorers=scorers,
        counts={"prompts": None if None in sizes else sum(sizes)},
    )


def _name_tasks(data: dict[str, Any]) -> str:
    """Join the names of groups and of the tasks outside of groups, as a run with the source lm_eval does."""
    members = {task for tasks in data.get("group_subtasks", {}).values() for task in tasks}
    return "+".join(task for task in {**data["results"], **data.get("groups", {})} if task not in members)


def _read_scores(data: dict[str, Any], counted: dict[str, Any]) -> Iterator[Total]:
    """Yield the averages of groups and tasks, and their standard errors."""
    several = len(data["results"]) > 1
    for task, values in {**data.get("groups", {}), **data["results"]}.items():
        better = (data.get("higher_is_better") or {}).get(task) or {}
        for name, value in values.items():
            metric, _, chosen = name.partition(",")
            number = None if isinstance(value, str) else read_number(value)
            if number is None or not chosen:
                continue
            of = metric.removesuffix("_stderr")
            scorer = f"{task}: {of},{chosen}" if several else f"{of},{chosen}"
            if of != metric:
                yield Total("standard_error", "accuracy", number, SHARE, counted.get(task), scorer)
            else:
                yield make_score(scorer, metric, number, counted.get(task), better.get(metric, True))


def _find_samples(results: Path, tasks: list[str]) -> dict[str, Path]:
    stamp = results.stem.removeprefix("results_")
    names = {task: "samples_{}_{}.jsonl".format(re.sub(r"\W", "_", task), stamp) for task in tasks}
    samples = {task: results.with_name(name) for task, name in names.items() if results.with_name(name).exists()}
    if samples and (missing := [name for task, name in names.items() if task not in samples]):
        raise ValueError(f"there is no {missing[0]} next to it. hint: run lm_eval with --log_samples")
    return samples


def _read_rows(data: dict[str, Any], samples: dict[str, Path], scorers: dict[str, dict[str, Any]]) -> Rows:
    tables = {**data.get("groups", {}), **data["results"]}
    version = str(data.get("lm_eval_version") or "")
    rows, is_own = RowMaker(TOOL), False
    scores: dict[str, list[HarnessScore]] = {task: [] for task in samples}
    for task, file in samples.items():
        for sample in read_lines(file):
            chosen, is_own = sample["filter"], data.get("model_source") == OWN and "prompt_id" in sample["doc"]
            if (document := (task, sample["doc_id"])) not in rows.known:
                yield _make_prompt(rows, document, sample, is_own)
                yield from _read_answers(rows, rows.known[document], sample)
            prompt = rows.known[document]
            for metric in sample["metrics"]:
                if (value := read_number(sample[metric])) is not None:
                    texts = sample["filtered_resps"]
                    extracted = texts[0] if len(texts) == 1 and isinstance(texts[0], str) else None
                    scores[task].append(score(f"{metric},{chosen}", prompt, value, extracted=extracted))
    judged = join_tasks(tables, scores, version)
    for name, described in judged.scorers.items():
        scorers[name.removesuffix(",none") if is_own else name] = described
    for one in judged.scores:
        yield one._replace(scorer=one.scorer.removesuffix(",none")) if is_own else one


def _make_prompt(maker: RowMaker, name: tuple[str, int], sample: dict[str, Any], is_own: bool) -> Prompt:
    document, (first, *others) = sample["doc"], _read_arguments(sample)
    is_choice = len(first) > 1 and isinstance(first[1], str)
    options = [second for _, second in (first, *others)] if is_choice else None
    if is_own:
        names = {"source_id": document.pop("id"), "prompt_id": document.pop("prompt_id")}
        target = None if sample["target"] == "None" else sample["target"]
        return maker.prompt(document.pop("messages"), target, name=name, metadata=document, options=options, **names)
    return maker.prompt(
        first[0] if isinstance(first[0], list) else [{"role": "user", "content": first[0]}],
        _read_target(sample["target"]),
        identify_document(name[0], document),
        name=name,
        source_id=name_document(*name),
        metadata={"task": name[0], "document": name[1]},
        options=options,
    )


def _read_target(target: Any) -> str | None:
    """Return a task's target, of which the harness writes `str`: several right answers are Python's list."""
    if isinstance(target, str) and target.startswith("["):
        with suppress(ValueError, SyntaxError):
            golds = ast.literal_eval(target)
            if all(isinstance(gold, str) for gold in golds):
                return write_target(golds)
    return write_target(target)


def _read_arguments(sample: dict[str, Any]) -> list[list[Any]]:
    """Return the arguments of each request. The first one is a text, or a list of messages that a server rendered."""
    found = [list(given.values()) for given in sample["arguments"].values()]
    return [[json.loads(first[0]) if isinstance(first, list) else first, *others] for first, *others in found]


def _read_answers(maker: RowMaker, prompt: Prompt, sample: dict[str, Any]) -> Rows:
    for number, (context, *second) in enumerate(_read_arguments(sample)):
        option = second[0] if second else context  # a rolling likelihood is that of all its text
        for repeat_index, response in enumerate(sample["resps"][number]):
            if isinstance(option, dict):
                asked = {"messages" if isinstance(context, list) else "rendered": context, "sampling": option}
                yield from maker.answer(prompt, repeat_index, asked, text=response)
            else:
                asked = {"rendered": "".join([context, *second]), "option": option, "option_index": number}
                logprob = read_number(response[0] if isinstance(response, list) else response)
                yield from maker.answer(prompt, repeat_index, asked, option_logprob=logprob)
