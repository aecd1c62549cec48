"""Images through real vLLM: every engine sees them in their places, a bad row fails alone."""

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from engine_kit import (
    ARGS,
    ONE_CORE,
    ROOT,
    Control,
    by_id,
    import_into_core,
    open_async,
    open_engine,
)

from assayline.engines.client import HostedEngine
from assayline.engines.host.core import PREPARERS
from assayline.engines.pool import EnginePool
from assayline.errors import EngineInterruptedError, SpecError
from assayline.media.load import refer_synthetic
from assayline.media.references import MediaStore
from assayline.model import identify_model
from assayline.records import Completion, Media, Request
from assayline.requests.tokenizer import load_tokenizer
from assayline.run.prepare import Preparation
from assayline.spec.engine import ServerSpec
from assayline.spec.file import load_spec

pytestmark = pytest.mark.vllm

ROWS = [json.loads(line) for line in (ROOT / "examples" / "seeing.jsonl").read_text().splitlines()]
LIMIT = {"limit_mm_per_prompt": {"image": 2}}


@pytest.fixture(scope="module")
def asked(tiny_vlm: Path, monkeypatch_module: pytest.MonkeyPatch) -> list[Request]:
    """The requests of examples/seeing.yaml, as a run prepares them."""
    return prepare(tiny_vlm)


@pytest.fixture(scope="module")
def monkeypatch_module() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        yield patch


def prepare(model: Path, **changes: Any) -> list[Request]:
    spec = load_spec(ROOT / "examples" / "seeing.yaml", {"model": str(model), **changes})
    prepared = list(Preparation(spec, identify_model(str(model))))
    return [request for one in prepared for request in one.requests]


COUNT_ENCODED = """
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
encode = GPUModelRunner._execute_mm_encoder
def encode_and_count(self, scheduled, *given, **named):
    images = sum(len(inputs) for inputs in scheduled.scheduled_encoder_inputs.values())
    with open({path!r}, "a") as file:
        file.write("i" * images)
    return encode(self, scheduled, *given, **named)
GPUModelRunner._execute_mm_encoder = encode_and_count
"""
"""A module for vLLM's engine core: a letter for each image that the vision tower encodes."""


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a letter for each image that the vision tower encodes."""
    return tmp_path_factory.mktemp("encoded") / "encoded"


@pytest.fixture(scope="module")
def seeing(encoded: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Arguments of an engine that sees."""
    module = tmp_path_factory.mktemp("plugin") / "count_encoded.py"
    plugin = import_into_core(module, COUNT_ENCODED.format(path=str(encoded)))
    return {"args": {**ARGS, **LIMIT, **plugin}, "has_media": True}


@pytest.fixture(scope="module")
def sighted(tiny_vlm: Path, seeing: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostedEngine]:
    """An offline engine that sees."""
    log = tmp_path_factory.mktemp("sighted") / "engine.log"
    with closing(open_engine(tiny_vlm, log, run_id="one", **seeing)) as opened:
        yield opened


_numbers = itertools.count()


def again(requests: list[Request], change: Callable[[Request], Request] = lambda request: request) -> list[Request]:
    """The same requests under ids of their own, as an engine may know the old ones."""
    turn = next(_numbers)
    return [replace(change(request), request_id=f"{turn}-{number}") for number, request in enumerate(requests)]


def share_right(requests: list[Request], answers: dict[str, Completion], rows: list[Any] = ROWS) -> float:
    right = [answers[request.request_id].text == row["answer"] for request, row in zip(requests, rows, strict=True)]
    return sum(right) / len(right)


def of_two_pictures(requests: list[Request]) -> tuple[list[Request], list[Any]]:
    """Requests whose two images have different answers, with their rows."""
    pairs = [(r, row) for r, row in zip(requests, ROWS, strict=True) if isinstance(row["image"], list)]
    return [request for request, _ in pairs], [row for _, row in pairs]


def test_answers_depend_on_the_images_shown(sighted, asked):
    """Right with its images; by chance with other images, or in the other order."""
    requests = again(asked)
    answers = by_id(sighted.generate(requests))
    assert {answer.error_kind for answer in answers.values()} == {None}
    assert share_right(requests, answers) >= 0.98
    for request in requests:
        answer, media = answers[request.request_id], request.media or []
        assert answer.images == (len(media) or None)
        assert answer.media_tokens == (7 * len(media) or None), "four embeddings between three marks"
        assert answer.prompt_tokens == len(request.prompt_token_ids) + 6 * len(media)
        assert (answer.media_prepare_s is None) == (not media)
        assert answer.media_bytes == (sum(Path(one["path"]).stat().st_size for one in media) or None)
        assert answer.audios is answer.videos is None

    seen = [(request, row) for request, row in zip(asked, ROWS, strict=True) if request.media]
    grey = refer_synthetic("image", width=32, height=32, seed=3)
    blind = again([request for request, _ in seen], lambda r: replace(r, media=[grey] * len(r.media or [])))
    answers = by_id(sighted.generate(blind))
    assert share_right(blind, answers, [row for _, row in seen]) < 0.5

    both, rows = of_two_pictures(asked)
    turned = again(both, lambda request: replace(request, media=list(reversed(request.media or []))))
    answers = by_id(sighted.generate(turned))
    assert share_right(turned, answers, rows) < 0.6


def test_one_bad_image_is_one_error_row(tiny_vlm, sighted, asked, tmp_path):
    good = [request for request in asked if len(request.media or []) == 1][:12]
    sample, [picture] = good[0], good[0].media or []
    ids = sample.prompt_token_ids
    placeholder = load_tokenizer(tiny_vlm).convert_tokens_to_ids("<image>")
    (tmp_path / "cut.png").write_bytes(Path(picture["path"]).read_bytes()[:90])
    (tmp_path / "page.html").write_text("<html>")
    cut, page = (MediaStore(None).refer("image", tmp_path / name) for name in ("cut.png", "page.html"))
    sound = refer_synthetic("audio", seconds=1.0, seed=0)
    cases: list[tuple[list[Media], list[int], str, str]] = [
        ([cut], ids, "media_error", "truncated"),
        ([page], ids, "media_error", "none of BMP"),
        ([{**cut, "path": str(tmp_path / "gone.png")}], ids, "media_error", "No such file"),
        ([{**cut, "digest": "another"}], ids, "media_error", "changed"),
        ([picture] * 2, ids, "rejected_by_engine", ""),
        ([picture] * 3, [placeholder] * 3 + ids[-5:], "rejected_by_engine", "At most 2 image"),
        ([picture], ids + ids[-1:] * (253 - len(ids)), "prompt_too_long", "259 tokens with its media (253 without)"),
        ([sound], ids, "rejected_by_engine", ""),
    ]
    bad = again([replace(sample, media=media, prompt_token_ids=sent) for media, sent, _, _ in cases])
    requests = again(good)
    mixed = [request for pair in itertools.zip_longest(requests, bad) for request in pair if request is not None]
    answers = by_id(sighted.generate(mixed))
    for request, (_, _, kind, words) in zip(bad, cases, strict=True):
        answer = answers[request.request_id]
        assert (answer.error_kind, answer.text) == (kind, None)
        assert words in (answer.error_message or "")
    texts = {row["answer"] for row in ROWS}
    assert all(answers[request.request_id].text in texts for request in requests)


def test_requests_stopped_during_media_preparation_can_be_sent_again(sighted, asked):
    control = Control()
    sighted._hooks, hooks = control.hooks, sighted._hooks
    requests = [request for request in asked if request.media]
    try:
        answers = sighted.generate(again(requests))
        next(answers)
        control.stop = True
        with pytest.raises(EngineInterruptedError):
            list(answers)
    finally:
        sighted._hooks = hooks
    repeated = again(asked)
    assert share_right(repeated, by_id(sighted.generate(repeated))) >= 0.98


def test_a_process_that_prepares_may_die(sighted, asked):
    """Others prepare in its place, and in the end the engine's own."""
    requests = again(asked)
    answers: dict[str, Completion] = {}
    preparers = psutil.Process(sighted.host_pid).children()
    assert len(preparers) == PREPARERS
    for answer in sighted.generate(requests):
        answers[answer.request_id] = answer
        if len(answers) == 1:
            for preparer in preparers:
                preparer.kill()
    assert share_right(requests, answers) >= 0.98
    assert {answer.error_kind for answer in answers.values()} == {None}
    left = psutil.Process(sighted.host_pid).children()
    assert all(child.status() == psutil.STATUS_ZOMBIE for child in left), "none is forked again"


@pytest.mark.rare
def test_an_async_engine_sees_the_same(tiny_vlm, sighted, asked, tmp_path):
    log = tmp_path / "async.log"
    with closing(open_async(tiny_vlm, log, args={**ONE_CORE, **LIMIT}, has_media=True, window=16)) as engine:
        requests = again(asked)
        answers = by_id(engine.generate(requests))
        offline = again(asked)
        others = by_id(sighted.generate(offline))
        assert share_right(requests, answers) >= 0.98
        for ours, theirs in zip(requests, offline, strict=True):
            answer, other = answers[ours.request_id], others[theirs.request_id]
            assert (answer.text, answer.prompt_tokens, answer.media_tokens, answer.image_pixels) == (
                other.text, other.prompt_tokens, other.media_tokens, other.image_pixels,
            )  # fmt: skip
            assert answer.retries is None


def lengthen(request: Request, chars: int, request_id: str) -> Request:
    """The same with more text, with that many characters that do not merge into one token."""
    [message] = request.messages or []
    content = [*message["content"], {"type": "text", "text": "7" * chars}]
    return replace(request, request_id=request_id, messages=[{**message, "content": content}])


def test_a_server_is_sent_what_is_in_the_files(tiny_vlm, sighted, tmp_path, asked):
    served = prepare(tiny_vlm, **{"engine.backend": "server", "engine.server.endpoint": "chat"})
    assert all(request.messages and not request.prompt_token_ids for request in served)
    chosen = served[:40]
    gone = replace(next(request for request in served if request.media), request_id="gone")
    gone = replace(gone, media=[{**gone.media[0], "path": str(tmp_path / "gone.png")}])  # type: ignore[index]
    long = [lengthen(next(r for r in chosen if r.media), words, f"long-{words}") for words in (100, 1000)]
    how: dict[str, Any] = {"backend": "server", "server": ServerSpec(endpoint="chat"), "window": 8}
    with closing(open_engine(tiny_vlm, tmp_path / "server.log", args={**ONE_CORE, **LIMIT}, **how)) as engine:
        answers = by_id(engine.generate([*chosen, gone, *long]))
    assert answers.pop("gone").error_kind == "media_error"
    assert answers.pop("long-100").error_kind is None, "asked for, and found to fit"
    refused = answers.pop("long-1000")
    assert refused.error_kind == "prompt_too_long", refused.error_message
    assert "tokens with its media, as the server counts them, but the context is 256" in str(refused.error_message)
    assert " 400 Bad Request" not in (tmp_path / "server.log").read_text(), "it was never sent"
    offline = again(asked[:40])
    others = by_id(sighted.generate(offline))
    same = [answers[a.request_id].text == others[b.request_id].text for a, b in zip(chosen, offline, strict=True)]
    assert sum(same) >= 39, "of two answers that are as likely, another may win in another batch"
    for request in chosen:
        answer, media = answers[request.request_id], request.media or []
        assert (answer.images, answer.media_tokens) == ((len(media), 7 * len(media)) if media else (None, None))
        assert (answer.prompt_tokens or 0) > 6 * len(media)


@pytest.mark.parametrize("open_one", [open_engine, pytest.param(open_async, marks=pytest.mark.rare)])
def test_a_run_that_takes_an_engine_over_encodes_its_images_again(
    open_one, tiny_vlm, sighted, seeing, encoded, asked, tmp_path
):
    """The last test of the engine that sees."""
    images = {request.media[0]["digest"]: request for request in asked if len(request.media or []) == 1}
    requests = list(images.values())[:8]
    first = sighted if open_one is open_engine else open_one(tiny_vlm, tmp_path / "one.log", run_id="one", **seeing)
    with EnginePool() as pool:
        first._pool = pool
        with closing(first):
            for _ in range(2):
                encoded.write_text("")
                assert len(by_id(first.generate(again(requests)))) == 8
        assert encoded.read_text() == "", "known in the second turn"
        with closing(open_one(tiny_vlm, tmp_path / "two.log", run_id="two", pool=pool, **seeing)) as second:
            assert second.facts.details["kept_from"] == "one"
            assert len(by_id(second.generate(again(requests)))) == 8
        assert len(encoded.read_text()) == 8
        with pytest.raises(SpecError, match="not usable"):
            open_one(tiny_vlm, tmp_path / "three.log", pool=pool, **seeing, sampling={"stop_token_ids": "x"})
