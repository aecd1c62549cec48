"""Run the harness's `simple_evaluate` over the tasks of a run, with a model that stops it or replays answers.

The harness is called twice, with the same arguments: before the run with a model that stops it once it has built its
requests, and after the run with a model that returns the stored answers. So the harness's own code makes requests from
tasks, and scores from answers.
"""

import contextlib
import functools
import importlib.util
import logging
import os
import random
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from assayline.errors import PromptError, SpecError
from assayline.spec.evaluation import EvalSpec
from assayline.spec.prompts import LmEvalSource
from assayline.words import nearest

INSTALL = "pip install 'assayline[lm-eval]'"

ApplyTemplate = Callable[..., str]
"""Renders a conversation with `add_generation_prompt` to a text, with the harness's signature."""


class _WroteRequests(Exception):
    """Ends the harness's first pass."""


def write_requests(spec: EvalSpec, source: LmEvalSource, apply_template: ApplyTemplate | None) -> Iterator[Any]:
    """Yield the harness's `Instance`s by task and document. Raises PromptError for a task that cannot be opened."""
    manager = _open_manager(source.include_path, source.tasks)
    with contextlib.suppress(_WroteRequests):
        _evaluate(spec, source, manager, _listener(apply_template))
    for task in manager.loaded["tasks"].values():
        yield from task.instances


def judge(spec: EvalSpec, source: LmEvalSource, apply_template: ApplyTemplate | None, answer: Any) -> dict[str, Any]:
    """Return the harness's results, those of `lm_eval --log_samples`.

    `answer(request_type, instance, repeat_index)` returns the stored response to a request. Raises PromptError.
    """
    manager = _open_manager(source.include_path, source.tasks)
    results: dict[str, Any] = _evaluate(spec, source, manager, _replay(apply_template, answer))
    tasks = manager.loaded["tasks"]
    aggregations = {
        name: {metric: getattr(function, "__name__", "") for metric, function in task.aggregation().items()}
        for name, task in tasks.items()
    }
    return {**results, "aggregations": aggregations, "lm_eval_version": version("lm_eval")}


def _evaluate(spec: EvalSpec, source: LmEvalSource, manager: Any, model: Any) -> Any:
    import lm_eval.api.task
    from lm_eval import simple_evaluate

    lm_eval.api.task.tqdm = lambda items, **_: items  # its progress bars would overwrite ours
    names = list(source.tasks)
    _check_names(names, manager)
    try:
        with _keep_random_state():
            return simple_evaluate(
                model=model,
                tasks=names,
                task_manager=manager,
                num_fewshot=source.num_fewshot,
                limit=spec.prompts.limit,
                system_instruction=spec.chat.system,
                apply_chat_template=source.apply_chat_template,
                fewshot_as_multiturn=source.apply_chat_template,
                confirm_run_unsafe_code=source.confirm_run_unsafe_code,
                torch_random_seed=None,
                bootstrap_iters=0,
                log_samples=True,
            )
    except _WroteRequests:
        raise
    except Exception as error:  # a task is third-party code over a third-party dataset: it can raise anything
        raise PromptError(f"lm-evaluation-harness failed on {', '.join(names)}: {_explain(error)}") from error


@contextlib.contextmanager
def _keep_random_state() -> Iterator[None]:
    """Restore the process's random states, which the harness seeds and which names and delays are drawn from."""
    states = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


def _check_names(names: list[str], manager: Any) -> None:
    for name in names:
        if name not in manager.all_tasks and not Path(name).is_file():
            raise PromptError(
                f"Unknown task {name!r} of lm-evaluation-harness: {nearest(name, manager.all_tasks)} hint: list the "
                "tasks with `lm_eval ls tasks`; set prompts.source.include_path to use your own."
            )


def _explain(error: Exception) -> str:
    chain = [error, *([error.__cause__] if error.__cause__ is not None else [])]
    text = "; ".join(" ".join(f"{type(one).__name__}: {one}".split())[:300] for one in chain)
    if "marked as unsafe" in text:
        return (
            "the task runs code that the model writes on this machine. hint: if you trust it, set "
            "prompts.source.confirm_run_unsafe_code to true."
        )
    if "trust_remote_code" in text or "Dataset scripts" in text:
        return f"its dataset needs a loading script, and those are not run: {text}"
    return text


def _open_manager(include_path: str | None, names: list[str]) -> Any:
    """Open the harness's index of tasks. Raises SpecError if the package or the folder is missing."""
    if importlib.util.find_spec("lm_eval") is None:
        raise SpecError(f"Tasks of lm-evaluation-harness need the package lm_eval. hint: {INSTALL}")
    if include_path is None:
        return _read_index(None)
    if not Path(include_path).is_dir():
        raise SpecError(
            f"prompts.source.include_path {include_path} is not a folder. hint: pass one with task YAML files."
        )
    own = _make_manager(include_path, include_defaults=False)
    return own if names and set(names) <= set(own.all_subtasks) else _read_index(include_path)


@functools.lru_cache(maxsize=1)
def _read_index(include_path: str | None) -> Any:
    """Read the index with the harness's own tasks, thousands of them. Cached, as reading takes 6 s of CPU time."""
    return _make_manager(include_path, include_defaults=True)


def _make_manager(include_path: str | None, *, include_defaults: bool) -> Any:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from datasets import disable_progress_bars
    from lm_eval.tasks import TaskManager

    disable_progress_bars()
    logging.getLogger("lm_eval").setLevel(logging.ERROR)

    class Manager(TaskManager):  # type: ignore[misc]
        """Keeps the loaded tasks, to read them after the harness has been stopped."""

        def load(self, task_list: Any) -> Any:
            self.loaded = super().load(task_list)
            return self.loaded

    return Manager(include_path=include_path, include_defaults=include_defaults)


def _listener(apply_template: ApplyTemplate | None) -> Any:
    """Make a model that stops the harness at its first request, when all requests are built."""

    def stop(request_type: str, requests: list[Any]) -> Any:
        raise _WroteRequests

    return _make_model(apply_template, stop)


def _replay(apply_template: ApplyTemplate | None, answer: Any) -> Any:
    """Make a model that returns stored answers."""

    def look_up(request_type: str, requests: list[Any]) -> list[Any]:
        found, repeat = [], 0
        for at, request in enumerate(requests):
            repeat = repeat + 1 if at and requests[at - 1] is request else 0  # repeats follow one another
            found.append(answer(request_type, request, repeat))
        return found

    return _make_model(apply_template, look_up)


def _make_model(apply_template: ApplyTemplate | None, respond: Callable[[str, list[Any]], list[Any]]) -> Any:
    from lm_eval.api.model import LM

    class HarnessModel(LM):  # type: ignore[misc]
        tokenizer_name = "assayline"

        def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[Any]:
            return respond("generate_until", requests)

        def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[Any]:
            return respond("loglikelihood", requests)

        def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[Any]:
            return respond("loglikelihood_rolling", requests)

        def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
            assert apply_template is not None, "called only if the spec applies a chat template"
            return apply_template(chat_history, add_generation_prompt)

    return HarnessModel()
