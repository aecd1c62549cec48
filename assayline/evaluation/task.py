"""A run of a task of lm-evaluation-harness: how its requests are made, and how its answers come to their scores."""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from assayline.files import MAKE_ROOM, write_text
from assayline.harness.build import build_harness_requests
from assayline.harness.encode import HarnessEncoder
from assayline.harness.judge import judge_answers
from assayline.harness.tasks import ApplyTemplate, write_requests
from assayline.requests.build import Prepared
from assayline.requests.chat import ChatRenderer
from assayline.requests.served_chat import ServedChat
from assayline.spec.evaluation import EvalSpec
from assayline.spec.prompts import ChatSpec
from assayline.spec.sources import LmEvalSource
from assayline.store.judged import FOLDER_NAME, StoredAnswer, write_judged

RESULTS_NAME = "results.json"


def plan_chat(spec: EvalSpec) -> ChatSpec:
    """The spec's, unless a task writes bare text, for which no template need be there."""
    source = spec.prompts.source
    if isinstance(source, LmEvalSource) and not source.apply_chat_template:
        return spec.chat.model_copy(update={"template": "plain"})
    return spec.chat


def write_task_requests(
    spec: EvalSpec, source: LmEvalSource, renderer: ChatRenderer | ServedChat, tokenizer: Any, max_model_len: int | None
) -> Iterator[Prepared]:
    """A Prepared per document. Raises SpecError or PromptError with the first one, for a task that cannot be asked."""
    assert isinstance(renderer, ChatRenderer), "the spec refuses a server that renders"
    encoder = HarnessEncoder(tokenizer, max_model_len, spec.sampling)
    instances = write_requests(spec, source, _choose_template(source, renderer))
    yield from build_harness_requests(instances, encoder, is_served=spec.engine.kind.is_served)


def judge_task(
    spec: EvalSpec, source: LmEvalSource, run_dir: Path, answers: Iterable[StoredAnswer], renderer: ChatRenderer
) -> list[str]:
    """Has the harness judge a run's answers, and keeps what it says in the run's folder: scores for the database, and
    results and samples as `lm_eval --log_samples` writes them. Returns notes for the run's log.

    Raises PromptError or StoreError, and then the answers are what they were.
    """
    verdict = judge_answers(spec, source, _choose_template(source, renderer), answers)
    results, folder = dict(verdict.results), run_dir / FOLDER_NAME
    for task, samples in results.pop("samples").items():
        lines = "".join(json.dumps(sample, ensure_ascii=False, default=str) + "\n" for sample in samples)
        write_text(folder / f"samples_{_name_file(task)}.jsonl", lines, MAKE_ROOM)
    text = json.dumps(results, indent=2, ensure_ascii=False, default=str)
    write_text(folder / RESULTS_NAME, text + "\n", MAKE_ROOM)
    write_judged(run_dir, verdict.judged)
    return verdict.notes


def _choose_template(source: LmEvalSource, renderer: ChatRenderer) -> ApplyTemplate | None:
    return renderer.apply if source.apply_chat_template else None


def _name_file(task: str) -> str:
    """A task's name as a part of a file's."""
    return re.sub(r"[^\w.-]", "_", task)
