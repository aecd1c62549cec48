"""Judge stored answers with the harness: its results, and a score per prompt for each metric that has one.

A metric has scores per prompt if the harness averages values from 0 to 1. Other metrics (perplexity, corpus BLEU) are
computed over all documents: they become a scorer without scores that has the harness's aggregate.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assayline.errors import StoreError
from assayline.harness.build import identify_document, name_document
from assayline.harness.tasks import ApplyTemplate, judge
from assayline.spec.evaluation import EvalSpec
from assayline.spec.prompts import LmEvalSource
from assayline.store.score_files import HarnessScore, HarnessScores
from assayline.store.scoring import StoredAnswer

KIND = "lm_eval"
"""Kind of the harness's scorers in the table scorers."""
ALL_TASKS = "all tasks"
"""First scorer of a run of several tasks: each document's score by the first metric of its task that has scores."""
ROUNDING = 1e-6
"""Tolerance for shares: a sum of probabilities can be 1.0000000000000002."""


@dataclass(frozen=True, slots=True)
class HarnessResults:
    """Results of the harness, and the scorers and scores made from them."""

    results: dict[str, Any]
    """Results and samples, as `lm_eval --log_samples` writes them."""
    judged: HarnessScores
    """Scorers are named by metric and filter, as in the harness, and keep its aggregates by task and group; see
    `join_tasks`. Scorers with scores come first, in the order of the tasks."""
    notes: list[str]
    """A message per averaged metric without scores per document."""


class HarnessAnswers:
    """A run's answers, looked up by the harness's requests."""

    def __init__(self, rows: Iterable[StoredAnswer]) -> None:
        self._by_document: dict[tuple[str, int], list[StoredAnswer]] = defaultdict(list)
        self._first: dict[str, StoredAnswer] = {}
        self.errors: dict[str, str] = {}
        """Kind of error by source_id."""
        for row in rows:
            self._by_document[row.source_id, row.repeat_index].append(row)
            self._first.setdefault(row.source_id, row)
            if row.error_kind is not None:
                self.errors.setdefault(row.source_id, row.error_kind)
        for found in self._by_document.values():
            found.sort(key=lambda row: row.option_index or 0)

    def identify(self, source_id: str) -> tuple[str, int]:
        """Return prompt_id and occurrence of a document."""
        row = self._first[source_id]
        return row.prompt_id, row.occurrence

    def answer(self, request_type: str, instance: Any, repeat_index: int) -> Any:
        """Return the response in the harness's form. An error row is an empty text, or a log-likelihood of -inf.

        Raises StoreError for a document that the run did not send, or sent in another form.
        """
        source_id = name_document(instance.task_name, instance.doc_id)
        rows = self._by_document.get((source_id, repeat_index))
        if rows is None or rows[0].prompt_id != identify_document(instance.task_name, instance.doc):
            raise StoreError(
                f"Document {instance.doc_id} of task {instance.task_name} differs from the run's: the task or its "
                "dataset has changed. hint: start a new run with --fresh; the stored answers are kept."
            )
        has_error = source_id in self.errors
        match request_type:
            case "generate_until":
                return "" if has_error else rows[0].text or ""
            case "loglikelihood":
                return (-float("inf"), False) if has_error else _read_likelihood(rows[instance.idx])
        return -float("inf") if has_error else sum(row.option_logprob or 0.0 for row in rows)


def judge_answers(
    spec: EvalSpec, source: LmEvalSource, apply_template: ApplyTemplate | None, rows: Iterable[StoredAnswer]
) -> HarnessResults:
    """Judge answers. Raises PromptError for a task that cannot be opened, StoreError for one that has changed."""
    answers = HarnessAnswers(rows)
    results = judge(spec, source, apply_template, answers.answer)
    without_scores = _find_other_values(results, answers)
    scores: dict[str, list[HarnessScore]] = {task: [] for task in results["samples"]}
    for task, samples in results["samples"].items():
        aggregations = results["aggregations"].get(task, {})
        for sample in samples:
            source_id = name_document(task, sample["doc_id"])
            for metric in sample["metrics"]:
                name = f"{metric},{sample['filter']}"
                if aggregations.get(metric) == "mean" and (task, name) not in without_scores:
                    scores[task].append(_score(name, sample, metric, answers, source_id))
    tables = {**results.get("groups", {}), **results["results"]}
    judged = join_tasks(tables, scores, results["lm_eval_version"])
    return HarnessResults(results, judged, list(without_scores.values()))


def join_tasks(
    tables: Mapping[str, Mapping[str, Any]], by_task: Mapping[str, Sequence[HarnessScore]], version: str
) -> HarnessScores:
    """Join the scores of a run's tasks. Of several tasks each has scorers of its own, after ALL_TASKS.

    Scorers without scores have the aggregates in `tables` that no other scorer has.
    """
    scorers: dict[str, dict[str, Any]] = {}
    first_metrics: dict[str, str | None] = {}
    joined: list[HarnessScore] = []

    def title(task: str, name: str) -> str:
        return name if len(by_task) == 1 else f"{task}: {name}"

    for task, scores in by_task.items():
        outside = {score.scorer for score in scores if not 0 <= score.value <= 1}
        first = next((score.scorer for score in scores if score.scorer not in outside), None)
        first_metrics[task] = first and title(task, first)
        own = tables if len(by_task) == 1 else {task: tables.get(task, {})}
        for name in dict.fromkeys(score.scorer for score in scores):
            scorers[title(task, name)] = describe_metric(own, name, version)
        joined += [score._replace(scorer=title(task, score.scorer)) for score in scores]
        if len(by_task) > 1:
            joined += [score._replace(scorer=ALL_TASKS) for score in scores if score.scorer == first]
    for name in dict.fromkeys(name for table in tables.values() for name in table if "_stderr" not in name):
        left = {task: table for task, table in tables.items() if title(task, name) not in scorers}
        scorers.setdefault(name, describe_metric(left, name, version))
    scorers = {name: found for name, found in scorers.items() if found["harness"]}
    if len(by_task) > 1 and any(first_metrics.values()):
        described = {"kind": KIND, "tasks": first_metrics, "harness": {}, "definition": f"lm_eval {version}"}
        scorers = {ALL_TASKS: described, **scorers}
    return HarnessScores(scorers, joined)


def _read_likelihood(row: StoredAnswer) -> tuple[float, bool]:
    """Return the log-likelihood, and whether it is greedy: whether no other token was likelier at any position."""
    positions = row.prompt_logprobs
    is_greedy = positions is not None and all(len(set(position.values())) == 1 for position in positions)
    return row.option_logprob or 0.0, is_greedy


def _find_other_values(results: Mapping[str, Any], answers: HarnessAnswers) -> dict[tuple[str, str], str]:
    """Find metrics that are averaged over values outside 0 to 1. Return a message for each task and metric.

    Documents with an error row score 0 whatever the harness computes for them, such as NaN for a ratio.
    """
    found: dict[tuple[str, str], str] = {}
    for task, samples in results["samples"].items():
        aggregations = results["aggregations"].get(task, {})
        for sample in samples:
            if name_document(task, sample["doc_id"]) in answers.errors:
                continue
            for metric in sample["metrics"]:
                value, name = _read_number(sample[metric]), f"{metric},{sample['filter']}"
                is_share = value is not None and -ROUNDING <= value <= 1 + ROUNDING
                if aggregations.get(metric) == "mean" and not is_share and (task, name) not in found:
                    found[task, name] = (
                        f"{name} of task {task} has no scores per document: document {sample['doc_id']} has "
                        f"{sample[metric]!s:.80}, expected a number from 0 to 1. Only the harness's average is stored."
                    )
    return found


def describe_metric(tables: Mapping[str, Mapping[str, Any]], name: str, version: str) -> dict[str, Any]:
    """Describe a metric with its aggregates. Names and counts in the harness's tables have no aggregates."""
    metric, is_metric, chosen = name.partition(",")
    numbers = {task: _read_number(table.get(name)) for task, table in tables.items()} if is_metric else {}
    aggregates = {task: number for task, number in numbers.items() if number is not None and math.isfinite(number)}
    return {
        "kind": KIND, "metric": metric, "filter": chosen, "harness": aggregates, "definition": f"lm_eval {version}",
    }  # fmt: skip


def _read_number(value: Any) -> float | None:
    """Convert numbers, including NumPy's numbers and Booleans; return None for text and sequences."""
    if isinstance(value, str | bytes | tuple | list | dict) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _score(name: str, sample: Mapping[str, Any], metric: str, answers: HarnessAnswers, source_id: str) -> HarnessScore:
    prompt_id, occurrence = answers.identify(source_id)
    if source_id in answers.errors:
        kind = answers.errors[source_id]
        return HarnessScore(name, prompt_id, occurrence, 0.0, None, f"error: {kind}", kind)
    filtered = sample["filtered_resps"]
    extracted = filtered[0] if len(filtered) == 1 and isinstance(filtered[0], str) else None
    value = min(1.0, max(0.0, float(sample[metric])))
    return HarnessScore(name, prompt_id, occurrence, value, extracted, f"{name} of lm-evaluation-harness")
