"""CPU time of each scorer per 100,000 answers, through the function that a run calls, its processes included.

`python -m benchmarks.scorers`; the last line is JSON. An answer is short ("The answer is 42.") or, with `long`, has
four lines of sums before it.
"""

import json
import resource
from collections.abc import Iterator
from typing import Any

from pydantic import TypeAdapter

from assayline.errors import SpecError
from assayline.scorers.process import ScorerInput, check_function, score_answers
from assayline.spec.criteria import FunctionScorer, Scorer

SUMS = "She has 3 boxes of 14 apples and buys 12 more, which is 3 * 14 + 12 = 54 apples in all.\n" * 4
OPTIONS = {"options": ["yes", "no"], "option_logprobs": [-1.5, -2.0], "option_tokens": [1, 1]}
CODE = "```python\ndef f(x):\n    return x + 1\n```"
JOBS: dict[str, tuple[Any, str | None, str | None, dict[str, Any], int]] = {
    "exact_match": ("exact_match", "The answer is {}.", "{}", {}, 100_000),
    "contains": ("contains", "The answer is {}.", "{}", {}, 100_000),
    "regex": ({"kind": "regex", "pattern": r"is (\d+)"}, "The answer is {}.", "{}", {}, 100_000),
    "numeric": ("numeric", "The answer is {}.", "{}", {}, 100_000),
    "numeric, long": ("numeric", SUMS + "A: {}", "{}", {}, 100_000),
    "choice": ("choice", "The answer is (B).", "B", {}, 100_000),
    "choice, long": ("choice", SUMS + "So it must be (B), not A.", "B", {}, 100_000),
    "token_f1": ("token_f1", "The answer is {}.", "{}", {}, 100_000),
    "json": ({"kind": "json", "json_schema": {"required": ["a"]}}, '{{"a": {}}}', None, {}, 100_000),
    "verdict": ({"kind": "verdict", "scale": [0, 100]}, '{{"verdict": {}}}', None, {}, 100_000),
    "loglikelihood": ("loglikelihood", None, "yes", OPTIONS, 100_000),
    "math": ("math", r"So \boxed{{{}}}.", "{}", {}, 1_000),
    "code": ("code", CODE, "assert f(1) == 2", {}, 100),
}


def main() -> None:
    """Print a line per scorer."""
    seconds = {}
    for name, (given, answer, target, row, count) in JOBS.items():
        scorer = TypeAdapter(Scorer).validate_python(given)
        try:
            if isinstance(scorer, FunctionScorer):
                check_function(scorer)
        except SpecError as error:
            print(f"{name}: left out. {error}")
            continue
        began_s = measure_cpu_s()
        scored = sum(score is not None for score in score_answers(scorer, make_answers(answer, target, row, count)))
        assert scored == count
        seconds[name] = round((measure_cpu_s() - began_s) / count * 100_000, 1)
        print(f"{name}: {seconds[name]} CPU-s per 100,000 answers")
    print(json.dumps({"benchmark": "scorers", "cpu_s_per_100000": seconds}))


def make_answers(answer: str | None, target: str | None, row: dict[str, Any], count: int) -> Iterator[ScorerInput]:
    for number in range(count):
        text, wanted = (one and (one if one == CODE else one.format(number % 97)) for one in (answer, target))
        yield ScorerInput(text, wanted, row)


def measure_cpu_s() -> float:
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


if __name__ == "__main__":
    main()
