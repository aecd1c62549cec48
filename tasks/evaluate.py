"""The tasks of an evaluation: one prepares the prompts, and one per worker generates."""

from collections.abc import Callable
from typing import cast

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed

from assayline.run.watch import AnyLogger
from assayline.store.manifest import PromptCounts
from assayline.words import count


@task(name="prepare-prompts", cache_policy=NO_CACHE, persist_result=False)
def prepare_prompts(work: Callable[[AnyLogger], PromptCounts]) -> PromptCounts:
    """Write every shard and log the counts."""
    return work(get_run_logger())


@task(name="generate", task_run_name="generate-{worker}", cache_policy=NO_CACHE, persist_result=False)
def generate(worker: str, work: Callable[[AnyLogger], int]) -> int:
    """Drive a worker, and return its number of answers. Its engine's log lines go to the task run's log, by level."""
    answered = work(get_run_logger())
    return cast(int, Completed(message=count(answered, "answer"), data=answered))
