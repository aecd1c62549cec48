"""The task that turns the prompt set into shards of requests."""

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from assayline.evaluation.begin import Evaluation
from assayline.runs.manifest import PromptCounts


@task(name="prepare-prompts", cache_policy=NO_CACHE, persist_result=False)
def prepare_prompts(evaluation: Evaluation) -> PromptCounts:
    """Writes every shard and says what was found."""
    counts = evaluation.prepare()
    log = get_run_logger()
    log.info("%d prompts in %d shards, %d requests", counts.prompt_rows, counts.shards, counts.requests)
    if counts.expected_requests:
        log.info("Longest answers first, by earlier runs: known for %d requests", counts.expected_requests)
    if counts.duplicate_prompts:
        log.warning(
            "%d of %d prompts repeat an earlier one (same messages and target); each is asked all the same",
            counts.duplicate_prompts,
            counts.prompt_rows,
        )
    if counts.failed_requests:
        log.warning("%d requests cannot be generated and are error rows; see error_breakdown", counts.failed_requests)
    for name, cut in counts.cut_prompts.items():
        log.warning(
            "%d prompts of the task %s were cut on their left to fit the context; raise engine.args.max_model_len to "
            "ask all of them",
            cut,
            name,
        )
    return counts
