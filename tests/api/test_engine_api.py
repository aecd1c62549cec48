"""The engine from Python: lazy, in any form of prompt, n samples, errors as answers, and deaths that nobody notices."""

import itertools
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import assayline
from assayline import Answer, Ask, Engine, evaluate
from assayline.engines import open_engine
from assayline.engines.base import AnyEngine
from assayline.errors import Death, EngineDiedError, EngineError, ModelError, SpecError
from assayline.records import Completion, EngineEvent
from assayline.run import worker as worker_module

FAKE = {"backend": "fake"}
PLAIN = {"template": "plain"}


@pytest.fixture
def engine(tiny_model: Path) -> Iterator[Engine]:
    with Engine(str(tiny_model), engine=FAKE, chat=PLAIN, sampling={"max_tokens": 4}) as opened:
        yield opened


def by_index(answers: list[Answer]) -> dict[int, list[Answer]]:
    found: dict[int, list[Answer]] = {}
    for answer in answers:
        found.setdefault(answer.index, []).append(answer)
    return found


def test_texts_chats_and_token_ids_are_answered_with_what_was_asked(engine):
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "say two"}]
    prompts: list[Any] = ["say one", chat, [5, 6, 7], Ask("say four", tag={"row": 4})]
    answers = by_index(list(engine.generate(prompts)))
    assert sorted(answers) == [0, 1, 2, 3]
    assert [answers[index][0].text for index in (0, 1, 3)] == ["one", "two", "four"]
    assert answers[2][0].prompt_token_ids == [5, 6, 7]
    assert answers[1][0].content is chat and answers[3][0].tag == {"row": 4}
    assert all(one.error is None and len(one.token_ids or ()) == 4 for (one,) in answers.values())
    assert engine.model_id.startswith("sha256:")
    assert engine.facts.window_requests == 80


def test_each_prompt_has_n_samples_with_seeds_of_their_own(engine):
    answers = by_index(list(engine.generate([f"say {i}" for i in range(30)], n=3, temperature=1.0, seed=7)))
    assert sorted(answers) == list(range(30))
    assert all(sorted(one.sample for one in found) == [0, 1, 2] for found in answers.values())


def test_prompts_are_read_as_there_is_room_and_may_be_endless(engine):
    read = 0

    def ask() -> Iterator[str]:
        nonlocal read
        for number in itertools.count():
            read += 1
            yield f"say {number}"

    answers = engine.generate(ask())
    assert read == 0, "nothing is read before the first answer is wanted"
    taken = list(itertools.islice(answers, 5))
    assert len(taken) == 5 and read <= 2 * 80 + 5
    answers.close()
    assert [one.text for one in engine.generate(["say again"])] == ["again"], "left early, it can be asked again"


def test_a_prompt_may_wait_for_an_answer(engine):
    """Two turns each: the second is asked once the first is answered, and nothing else waits for it."""
    told: list[str] = []

    def ask() -> Iterator[str | None]:
        yield "say first"
        while not told:
            yield None
        yield f"say after-{told[0]}"

    for answer in engine.generate(ask()):
        told.append(str(answer.text))
    assert told == ["first", "after-first"]


def test_a_bad_prompt_is_an_answer_with_an_error_and_the_others_are_answered(engine):
    prompts: list[Any] = ["say one", [], [{"content": "no role"}], Ask("x", {"n": 3}), "say five", [1] * 5000]
    answers = {index: one for index, (one,) in by_index(list(engine.generate(prompts))).items()}
    assert sorted(answers) == list(range(6))
    assert [answers[index].text for index in (0, 4)] == ["one", "five"]
    for index, words in ((1, "no tokens"), (2, "role"), (3, "sets n"), (5, "the context is")):
        assert words in (answers[index].error or ""), answers[index]
        assert answers[index].text is None and answers[index].token_ids is None
    assert len(list(engine.generate([[], []]))) == 2, "and where nothing is left to ask"
    assert list(engine.generate([])) == []


def test_engine_rejects_invalid_arguments_at_once(engine, tiny_model):
    with pytest.raises(SpecError, match=r"sampling\.temprature: vLLM has no such argument; did you mean"):
        engine.generate(["x"], temprature=1.0)
    with pytest.raises(SpecError, match="at least 1"):
        list(engine.generate(["x"], n=0))
    first = engine.generate(["say one", "say two"])
    next(first)
    with pytest.raises(EngineError, match="busy with another iterable"):
        next(engine.generate(["x"]))
    with pytest.raises(ModelError, match="is not a folder"):
        Engine("./no-such-model", engine=FAKE)
    with pytest.raises(SpecError, match=r"Engine\(\.\.\.\) is not a valid spec"):
        Engine(str(tiny_model), engine={"backend": "fast"})


def test_closed_engine_raises(tiny_model):
    closed = Engine(str(tiny_model), engine=FAKE)
    closed.close()
    closed.close()
    with pytest.raises(EngineError, match="is closed"):
        list(closed.generate(["x"]))


class Mortal:
    """An engine that crashes after that many answers."""

    def __init__(self, engine: AnyEngine, answers: int) -> None:
        self._engine = engine
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(self, requests: Any) -> Iterator[Completion]:
        for number, completion in enumerate(self._engine.generate(requests)):
            if number >= self._answers:
                raise EngineDiedError("It was killed.", Death("run", exit_code=-9, log="", exception="", message=""))
            yield completion


def test_an_engines_death_is_an_event_and_every_prompt_is_answered_once(tiny_model, monkeypatch, caplog):
    lives = iter([40, 10**9])
    monkeypatch.setattr(worker_module, "open_engine", lambda *a, **k: Mortal(open_engine(*a, **k), next(lives)))
    events: list[EngineEvent] = []
    with (
        caplog.at_level(logging.WARNING, "assayline"),
        Engine(str(tiny_model), engine=FAKE, chat=PLAIN, on_event=events.append) as engine,
    ):
        answers = list(engine.generate((f"say {i}" for i in range(200)), n=2))
    assert sorted((one.index, one.sample) for one in answers) == [(i, j) for i in range(200) for j in range(2)]
    assert {one.text for one in answers} == {str(i) for i in range(200)}
    assert [event.event for event in events if event.event in ("opened", "failed", "closed")] == [
        "opened",
        "failed",
        "opened",
        "closed",
    ]
    assert {one.completion.engine_generation for one in answers} == {0, 1}
    assert "engine 0 failed" in caplog.text


def test_evaluate_needs_no_prefect(tiny_model, settings):
    rows = [{"prompt": f"say {i}", "target": str(i)} for i in range(20)]
    spec = {
        "name": "from python",
        "model": str(tiny_model),
        "prompts": {"source": {"kind": "inline", "rows": rows}, "columns": {"target": "target"}},
        "chat": PLAIN,
        "engine": FAKE,
    }
    result = evaluate(spec, settings=settings)
    metrics = {row["metric"]: row["value"] for row in result.metrics}
    assert (result.answered_requests, metrics["accuracy (exact_match)"]) == (20, 1.0)


def test_importing_is_cheap_and_names_are_what_they_are():
    heavy = {"pydantic", "duckdb", "numpy", "transformers", "prefect"}
    code = f"import sys, assayline; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    with pytest.raises(AttributeError, match="has no attribute 'Motor'"):
        _ = assayline.Motor
    assert {"Engine", "evaluate", "Answer", "Ask"} <= set(assayline.__all__)
