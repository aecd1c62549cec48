"""Bisections: which candidate of a list, or which field of two specs, changed the answers or the speed.

A pilot measures both ends and chooses the sensor: the first of probabilities, accuracy and speed in which they differ.
Then one candidate after another is measured. Every decision follows from the stored runs alone, so a repeated command
decides the same again, and goes on with the first run that is missing.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from assayline.benchmark import campaign as campaigns
from assayline.benchmark.bisection import ACCURACY, KL, Bisection, plan_bisection
from assayline.comparison.gate import Check, GateReport
from assayline.comparison.queries import compare_accuracy, compare_speed, read_metric
from assayline.comparison.reread import describe_reading
from assayline.digests import digest_json
from assayline.engines.pool import EnginePool
from assayline.errors import AssaylineError, ComparisonError, RunFailedError, SpecError, StoreError
from assayline.run.campaign import do_campaign, hold_campaign, list_done
from assayline.run.driver import FrontEnd
from assayline.run.reread import PROMPTS, Reference, check_same_prompts, find_reference, plan_reading
from assayline.run.stages import save_verdicts
from assayline.spec.evaluation import EvalSpec
from assayline.stats.bisect import choose_next, list_likely, weigh
from assayline.stats.pairs import Z
from assayline.stats.repeats import ASSUMED_SPREAD
from assayline.stats.rereads import Distance, judge_reading, read_answers
from assayline.stats.worse import LEVEL, Verdict
from assayline.store.database import Connection, Row
from assayline.store.manifest import AUTO, NEVER
from assayline.store.measure import read_reading
from assayline.store.thread import DatabaseThread
from assayline.words import count, name_metric, show_change, show_points, show_range, show_share

READINGS = ("reading", "reading in other batches")
SPEED = ASSUMED_SPREAD, 2.0
"""Assumed spread of a speed, with its degrees of freedom besides those of the repeats."""
DETECTED = Z + 0.8416
"""Standard errors of a difference that a comparison finds with 80% power."""


class Sensor(NamedTuple):
    """A metric of both ends (a speed is a logarithm), and the spread of runs of one level. fail: the ends differ."""

    metric: str
    ends: Sequence[Sequence[float]]
    spread: float
    degrees: float
    verdict: Verdict
    words: str


@dataclass(frozen=True, slots=True)
class BisectionResult:
    """The result of a bisection, which without a cause is not decided. A candidate that was skipped has the reason."""

    bisection_id: str
    headline: str
    metric: str
    cause: str | None
    candidates: list[Row]


def bisect(good: EvalSpec, bad: EvalSpec | None, front: FrontEnd, resume: str = AUTO, **asked: Any) -> BisectionResult:
    """Bisect two specs or a list, with arguments of `plan_bisection`. Raises SpecError, ModelError, RunFailedError."""
    front.settings.pass_on_token()
    plan, models = plan_bisection(good, bad, **asked), campaigns.Models()
    ends = plan.make_ends(models)
    shared = None if campaigns.can_share_engine(ends) else 0
    campaign = campaigns.new_campaign("bisection", good.name, ends, [], runs_per_engine=shared)
    asked |= {"names": plan.names, "ends": [[end.config_id, end.spec_json] for end in ends]}
    campaign = replace(campaign, asked=digest_json(asked))
    campaign = (resume != NEVER and campaigns.find_unfinished(campaign, front.settings)) or campaign
    with hold_campaign(campaign, front) as engines:
        result = _Search(plan, campaign, front, engines, models, DatabaseThread(front.settings).run).run()
    campaigns.write_campaign(replace(campaign, is_over=True), front.settings)
    return result


@dataclass
class _Search:
    """The pilot, and the search by its sensor."""

    plan: Bisection
    campaign: campaigns.Campaign
    front: FrontEnd
    engines: EnginePool
    models: campaigns.Models
    read: Callable[[Callable[[Connection], Any]], Any]
    reference: Reference | None = None
    reads: list[str] = field(default_factory=list)

    def run(self) -> BisectionResult:
        sensors: list[Sensor] = []
        for metric in self.plan.sensors:
            try:
                sensors.append(self.compare_readings() if metric == KL else self.compare_ends(metric))
            except (ComparisonError, SpecError, RunFailedError) as error:  # such as other tokenizers, or no scores
                is_end = self.reference is None and isinstance(error, RunFailedError)
                if is_end or metric == self.plan.sensors[-1]:
                    raise
                self.front.log.info("%s is not the sensor: %s", metric, error)
                continue
            if sensors[-1].verdict == "fail":
                return self.search(sensors[-1])
        verdict: Verdict = "pass" if all(sensor.verdict == "pass" for sensor in sensors) else "inconclusive"
        words = "do not differ beyond the limit" if verdict == "pass" else "are not shown to differ"
        return self.conclude(sensors[-1], verdict, " ".join([f"The ends {words}.", *(one.words for one in sensors)]))

    def measure(self, task: str, name: str, make: Callable[[], EvalSpec], repeats: int = 1) -> list[str]:
        """Return the ids of this many runs of a cell, after doing those that are missing. Raises RunFailedError."""
        campaign, key = self.campaign, f"{task} · {name}" if task else name
        cell = next((one for one in campaign.cells if one.key == key), None)
        if cell is None:
            cell = campaigns.make_cell(make(), name, self.models, task, is_measured=task not in ("", *READINGS))
            campaign.cells.append(cell)
        failed: dict[str, str] = {}
        if len(list_done(campaign, cell, self.front)) < repeats:
            campaign.order.extend([key] * (repeats - campaign.order.count(key)))
            failed = do_campaign(campaign, self.front, self.engines)
        done = [run.run_id for run in list_done(campaign, cell, self.front)]
        if len(done) < repeats:
            campaign.order[:] = [one for one in campaign.order if one != key]
            raise RunFailedError(failed.get(key, f"{cell.label} did not complete."))
        return done[:repeats]

    def evaluate(self, name: str, metric: str = ACCURACY, repeats: int = 1) -> list[str]:
        """Return the ids of evaluations; each one for speed opens an engine of its own."""
        if metric != ACCURACY:
            self.engines.clear()
        return self.measure("" if metric == ACCURACY else metric, name, partial(self.plan.make_spec, name), repeats)

    def read_answers(self, name: str) -> tuple[str, list[Row], Distance]:
        """Let an engine read the answers of the good end, as its own did before. Raises ComparisonError."""
        good, spec = next(iter(self.plan.ends)), self.plan.make_spec(name)
        if self.reference is None:
            [answers] = self.evaluate(good)
            self.reference = self.read(partial(find_reference, given=answers, prompts=PROMPTS))
        check_same_prompts(self.reference, spec)
        for task in READINGS[len(self.reads) :]:
            make = partial(plan_reading, self.reference, self.reference.spec, self.reads, PROMPTS)
            self.reads += self.measure(task, good, make)
        make = partial(plan_reading, self.reference, spec, self.reads, PROMPTS, is_reference=False)
        [run_id] = self.measure(READINGS[0], name, make)
        rows = self.read(partial(read_reading, run_id=run_id))
        if (found := read_answers(rows)) is None:
            raise ComparisonError(f"Run {run_id} has no answer that both engines have read. hint: look at its errors.")
        return run_id, rows, found

    def read_value(self, name: str, metric: str, number: int = 1) -> float:
        """Return the value of a candidate's run by its number, after measuring it."""
        if metric == KL:
            return self.read_answers(name)[2].kl.value
        run_id = self.evaluate(name, metric, number)[-1]
        if (value := self.read(partial(read_metric, run_id=run_id, metric=metric))) is None:
            raise ComparisonError(f"Run {run_id} has no {name_metric(metric)}. hint: pass another --metric.")
        return float(value) if metric == ACCURACY else math.log(max(value, 1e-12))

    def compare_ends(self, metric: str) -> Sensor:
        """Measure both ends in turn until they are shown to differ, or not to."""
        ends, is_accuracy, gate = [*self.plan.ends], metric == ACCURACY, self.plan.good.gate
        limit = (
            gate.max_accuracy_drop
            if is_accuracy
            else {str(k): v for k, v in gate.max_slowdown.items()}.get(metric, 0.05)
        )
        show = show_points if is_accuracy else show_change
        for repeats in ((1, 3, 5) if self.plan.is_sampled else (1,)) if is_accuracy else (3, 5):
            turns = [(end, n + 1) for n in range(repeats) for end in (ends if n % 2 == 0 else ends[::-1])]
            found = [(end, self.read_value(end, metric, number)) for end, number in turns]
            values = [[value for end, value in found if end == one] for one in ends]
            good, bad = (self.evaluate(end, metric, repeats) for end in ends)
            accuracy = partial(compare_accuracy, candidates=bad, baselines=good, limit=limit)
            speed = partial(compare_speed, candidates=bad, baselines=good, limits={metric: limit})
            compared = self.read(accuracy) if is_accuracy else self.read(speed).get(metric)
            if compared is None:
                raise ComparisonError(f"The ends have no {name_metric(metric)} in common. hint: pass another --metric.")
            is_same, error = compared.name_change() == "same", math.nan
            differs = not is_same and compared.p_value is not None and compared.p_value <= LEVEL
            words = f"{name_metric(metric)} changes by {show(compared.difference)}"
            if compared.low is not None and compared.high is not None:
                error = (compared.high - compared.low) / 2 / Z
                words += f" (95% CI {show_range(show(compared.low), show(compared.high))}); one of "
                words += f"{show(DETECTED * error)} would be found with 80% power"
            if differs or is_same:
                break
        spread, degrees = (error * math.sqrt(repeats / 2), compared.counts[0] - 1.0) if is_accuracy else SPEED
        verdict: Verdict = "fail" if differs else "pass" if is_same else "inconclusive"
        return Sensor(metric, values, spread, degrees, verdict, f"{words}.")

    def compare_readings(self) -> Sensor:
        """Let the engine of the bad end read the answers of the good one."""
        good, bad = self.plan.ends
        _, rows, found = self.read_answers(bad)
        max_kl = limit.max_kl if (limit := self.plan.good.gate.reread) else None
        verdict, _, needed = judge_reading(found, max_kl)
        words = describe_reading(found, rows, good, verdict, max_kl, needed)
        return Sensor(KL, ([found.floor], [found.kl.value]), found.kl.error, found.kl.degrees, verdict, words)

    def search(self, sensor: Sensor) -> BisectionResult:
        """Measure candidates until one cause is likely enough, none says more, or the runs are used up."""
        plan, log, skipped = self.plan, self.front.log, self.campaign.page
        names, values = [*plan.candidates], dict(zip(plan.ends, map(list, sensor.ends), strict=True))
        effect = abs(sensor.ends[1][0] - sensor.ends[0][0]) / max(sensor.spread, 1e-12)
        steps = math.log2(len(plan.names)) * max(1.0, (3 / max(effect, 0.1)) ** 2)
        log.info("Sensor: %s. %s About %s.", sensor.metric, sensor.words, count(math.ceil(steps), "more run"))
        is_once = sensor.metric == KL or (sensor.metric == ACCURACY and not plan.is_sampled)
        while True:
            asked = [
                (n, value) for n, name in enumerate(names) if name not in plan.ends for value in values.get(name, ())
            ]
            posterior = weigh(plan.hypotheses, sensor.ends, asked, sensor.spread, sensor.degrees)
            best = list_likely(posterior, plan.confidence)
            closed = {*skipped, *plan.ends, *(values if is_once else ())}
            index = choose_next(posterior, [name not in closed for name in names]) if len(best) > 1 else None
            runs = len(skipped) + sum(map(len, values.values()))
            if index is None or runs >= plan.max_runs:
                break
            own = values.get(name := names[index], [])
            try:
                values[name] = [*own, self.read_value(name, sensor.metric, len(own) + 1)]
            except StoreError:
                raise
            except AssaylineError as error:  # for example a version that does not load the model
                skipped[name] = str(error)
                campaigns.write_campaign(self.campaign, self.front.settings)
                log.warning("Skipping %s: %s", name, error)
        likely = "; ".join(map(plan.name_cause, best[:6]))
        chance = show_share(float(posterior.causes[best].sum()))
        headline = f"{likely} did it with a probability of {chance}, by {sensor.metric} in {runs} runs."
        if len(best) > 1:
            headline = f"Not decided. One of {len(best)}: {headline} hint: raise --max-runs, or ask more prompts."
        if posterior.more > 0.5:
            headline += " There is another change: bisect again without this one."
        found = {name: float(chance) for name, chance in zip(names, posterior.is_bad, strict=True)}
        found |= dict(zip(plan.ends, (0.0, 1.0), strict=True))
        means = [(name, len(own), sum(own) / len(own), found[name], None) for name, own in values.items()]
        rows = [*means, *((name, 0, None, None, why) for name, why in skipped.items())]
        columns = ("candidate", "runs", sensor.metric, "is_bad", "skipped")
        table = [dict(zip(columns, row, strict=True)) for row in rows]
        return self.conclude(sensor, "fail" if len(best) == 1 else "inconclusive", headline, table, likely)

    def conclude(
        self, sensor: Sensor, verdict: Verdict, headline: str, candidates: Sequence[Row] = (), likely: str = ""
    ) -> BisectionResult:
        """Store the verdict on the bad end against the good one, and return the result."""
        plan, metric, means = self.plan, sensor.metric, [sum(end) / len(end) for end in sensor.ends]
        good, bad = plan.ends
        if plan.method:
            headline += f" The method was kept as in the good spec: {', '.join(plan.method)}."
        run_id = self.read_answers(bad)[0] if metric == KL else self.evaluate(bad, metric)[0]
        [baseline] = self.evaluate(good, ACCURACY if metric == KL else metric)
        asked = {"metric": metric, "confidence": plan.confidence, "names": plan.names}
        unit = {KL: "nats/token", ACCURACY: "share"}.get(metric, "ln")
        check = Check("bisection", verdict, headline, means[1], means[0], None, unit)
        report = GateReport(run_id, baseline, [check], {"bisection": asked})
        self.read(partial(save_verdicts, data_dir=self.front.settings.data_dir, report=report))
        cause = likely if verdict == "fail" else None
        return BisectionResult(self.campaign.campaign_id, headline, metric, cause, [*candidates])
