"""The runs of a benchmark, one after another: those that are left, and in a sweep those whose rates these tell."""

from prefect import get_run_logger

from assayline.benchmark.configurations import add_rates, list_left
from assayline.benchmark.plan import Configuration, Plan, write_plan
from assayline.benchmark.profile import ENDS
from assayline.errors import EngineError, RunFailedError
from assayline.evaluation.resume import NEVER
from assayline.report.sweep import read_achieved_rates
from assayline.settings import Settings
from assayline.store.thread import DatabaseThread
from flows.evaluate import evaluate

RATES = "rates"
"""Stands for the points of a sweep whose rates cannot be told."""


def do_all_runs(
    plan: Plan, configurations: list[Configuration], settings: Settings
) -> tuple[Plan, list[Configuration], dict[str, str]]:
    """Does what is left. Returns the plan and its configurations, complete now, and why which of them failed."""
    failed = _do_runs(plan, configurations, settings)
    if plan.planned and not failed:
        try:
            plan, configurations = _find_rates(plan, settings)
        except RunFailedError as error:
            return plan, configurations, {RATES: str(error)}
        failed = _do_runs(plan, configurations, settings)
    return plan, configurations, failed


def _do_runs(plan: Plan, configurations: list[Configuration], settings: Settings) -> dict[str, str]:
    """Does what is left of these. Returns why configurations did not complete, by label."""
    failed: dict[str, str] = {}
    log = get_run_logger()
    left = list_left(plan, configurations, settings)
    log.info("Benchmark %s: %d of %d runs to do", plan.benchmark_id, len(left) + plan.planned, plan.total)
    for number, configuration in enumerate(left, plan.total - plan.planned - len(left) + 1):
        if configuration.label in failed:
            continue
        log.info("Run %d of %d: %s", number, plan.total, configuration.label)
        try:
            named = evaluate.with_options(flow_run_name=f"{configuration.label} · {number} of {plan.total}")
            named(configuration.spec, NEVER, plan.benchmark_id)
        except (EngineError, RunFailedError) as error:  # that of a size that does not fit, say
            failed[configuration.label] = str(error)
            log.error("%s is left out from here on: %s", configuration.label, error)
    return failed


def _find_rates(plan: Plan, settings: Settings) -> tuple[Plan, list[Configuration]]:
    """The plan of a sweep whose ends are measured, with the rates between them, which it keeps from now on."""
    achieved = DatabaseThread(settings).run(
        lambda connection: read_achieved_rates(connection, plan.benchmark_id, plan.config_ids[:ENDS])
    )
    plan, configurations = add_rates(plan, achieved)
    write_plan(plan, settings)
    labels = ", ".join(configuration.label for configuration in configurations[ENDS:])
    get_run_logger().info("Rates between what the two ends achieved: %s", labels)
    return plan, configurations
