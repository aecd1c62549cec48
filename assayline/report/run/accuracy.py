"""Report sections about answer quality: scores with confidence intervals, and sample prompts."""

import base64
import io
import json
from functools import partial
from pathlib import Path
from typing import Any

from assayline.errors import MediaError
from assayline.media.load import Hearing, Loaded, load_all
from assayline.media.references import find_media
from assayline.media.sounds import encode_wav
from assayline.records import Media
from assayline.report.answers import Filters, list_answers, read_whole_answers, show_answer, show_prompt
from assayline.report.document import Column, Exhibit, Part, Sample, Section, make_section, tabulate
from assayline.report.measures import chart_shares, spread
from assayline.report.run.rows import RunRows, list_repeats
from assayline.spec.prompts import MediaSpec
from assayline.store.database import Row
from assayline.store.metrics import USUAL_K
from assayline.words import count, show_share, show_value

ERROR = Column("standard error", "standard_error", show_share)
PROMPTS = Column("prompts", "prompts", show_value)
SCORES = (
    Column("scorer", "scorer"),
    Column("kind", "kind"),
    *spread("mean score", "mean"),
    ERROR,
    Column("excl. errors", "mean_without_errors", show_share),
    Column("n", "samples", show_value),
    PROMPTS,
    Column("effective n", "effective_samples", show_value),
)
REPEATS = (Column("statistic", "what"), Column("scorer", "scorer"), *spread("mean", "mean"), ERROR, PROMPTS)
FINISH, WRONG = "finish reason", "wrong answer"
GROUPS = (
    Column("property", "property"),
    Column("value", "value"),
    Column("mean score", "mean_value", show_share),
    Column("n", "samples", show_value),
    Column("scored 0", "wrong_samples", show_value),
)
WRONG_ANSWERS = (
    Column("answer", lambda row: row["value"] or "(empty)", is_text=True),
    Column("n", "samples", show_value),
)
VALUES = 20
WORST = 5
BEST = 3


def describe_accuracy(run: RunRows) -> Section | None:
    """Build the accuracy section: mean and interval of each scorer; None without scores."""
    scored = [row for row in run.accuracy if row["mean"] is not None]
    if not scored:
        return None
    sure = [row for row in scored if row["mean_low"] is not None]
    keys = {"name": "scorer", "value": "mean", "low": "mean_low", "high": "mean_high"}
    described = "Mean score of each scorer with its 95% interval"
    groups = run.read(_GROUPS, VALUES)
    by_value = [row for row in groups if row["property"] != WRONG]
    is_told = any(row["property"] != FINISH for row in by_value) or len(by_value) > 1
    return make_section(
        "accuracy",
        "Accuracy",
        chart_shares("Mean scores", described, "mean score (%)", sure, keys) if len(sure) > 1 else None,
        tabulate("Scores", SCORES, scored),
        _tabulate_repeats(run),
        tabulate(f"Mean score of {scored[0]['scorer']} by finish reason and metadata", GROUPS, by_value * is_told),
        tabulate(
            "Wrong answers given most often",
            WRONG_ANSWERS,
            (row for row in groups if row["property"] == WRONG),
            is_folded=True,
        ),
        "Errors score 0; the column “excl. errors” leaves them out. Standard errors are clustered by prompt. "
        "“effective n” is the number of independent answers with the same standard error: repeats that always "
        "agree add nothing.",
    )


def _tabulate_repeats(run: RunRows) -> Part:
    """Tabulate pass@k and majority vote over repeats."""
    passes = list_repeats(run.values, "pass@")
    most = max((row["k"] for row in passes), default=0)
    rows = [
        {**row, "what": f"pass@{row['k']}: at least one of {row['k']:,} correct"}
        for row in passes
        if row["k"] in (*USUAL_K, most)
    ]
    rows += [{**row, "what": "majority vote"} for row in list_repeats(run.values, "majority_vote")]
    if not rows:
        return "Every prompt was sent once, so pass@k and majority vote do not apply."
    return tabulate("Repeats", REPEATS, rows)


def describe_prompts(run: RunRows, run_dir: Path | None = None) -> Section | None:
    """Build the section of worst and best prompts, with input, output and media (found in `run_dir`).

    None without scores.
    """
    if not any(row["mean"] is not None for row in run.accuracy):
        return None
    scorer = run.accuracy[0]["scorer"]
    worst, best = _choose(run, scorer, "low", 1)[:WORST], _choose(run, scorer, "high", 0)[:BEST]
    answers = read_whole_answers(run.connection, run.run_id, [*worst, *best], ["scores", "options", "turns_said"])
    means = {
        (row["prompt_id"], row["occurrence"]): row
        for row in run.read(_MEANS, scorer, [row["prompt_id"] for row in answers.values()])
    }

    def show(title: str, request_id: str) -> Sample:
        row = answers[request_id]
        return _show_sample(title, row, scorer, means[row["prompt_id"], row["occurrence"]], run_dir)

    return make_section(
        "prompts",
        "Sample prompts",
        f"Selected by the scorer {scorer}, one answer per prompt.",
        map(partial(show, "Worst"), worst),
        None if worst else "Every prompt was answered correctly, which leaves no worst prompts.",
        map(partial(show, "Best"), best),
        None if best else "No prompt was answered correctly, which leaves no best prompts.",
    )


def _choose(run: RunRows, scorer: str, sort: str, unwanted: float) -> list[str]:
    """Return an answer per prompt, in an order, without those that have the `unwanted` score."""
    by_prompt: dict[tuple[str, int], str] = {}
    for row in list_answers(run.run_id, scorer, None, Filters(sort=sort)).read_plain(run.connection, 1):
        if row["score"] not in (None, unwanted):
            by_prompt.setdefault((row["prompt_id"], row["occurrence"]), row["request_id"])
    return list(by_prompt.values())


def _show_sample(title: str, row: Row, scorer: str, of: Row, run_dir: Path | None) -> Sample:
    score = next(one for one in row["scores"] if one["scorer"] == scorer)
    mean = f", mean of {count(of['samples'], 'repeat')} {show_value(of['mean'])}" if of["samples"] > 1 else ""
    facts = [("score", show_value(score["value"]) + mean)]
    if row["finish_reason"]:
        facts.append(("finish reason", row["finish_reason"]))
    if score["explanation"]:
        facts.append(("because", " ".join(score["explanation"].split())))
    name = f"{title}: row {row['source_row']:,} of the source"
    return Sample(name, facts, [show_prompt(row), *show_answer(row, scorer)], show_media(row["media_json"], run_dir))


_MEANS = """
    select prompt_id, occurrence, avg(value) as mean, count(*) as samples
    from score
    where run_id = ? and scorer = ? and list_contains(?::varchar[], prompt_id)
    group by prompt_id, occurrence
"""
_GROUPS = """
    with samples as (
        select scorer, prompt_id, occurrence, scores.value as score, finish_reason, coalesce(extracted, answer) as taken
        from (from scores where run_id = $1) as scores
        join (from stg_samples where run_id = $1) using (prompt_id, occurrence, repeat_index)
        where scorer = (select scorer from scorers where run_id = $1 order by ordinal limit 1)
    ),
    properties as (
        select scorer, score, 0 as place, 'finish reason' as property, finish_reason as value from samples
        union all
        select
            scorer, score, 1, property, metadata_json ->> ('/' || replace(replace(property, '~', '~0'), '/', '~1'))
        from samples
        join (
            select distinct prompt_id, occurrence, metadata_json, unnest(json_keys(metadata_json)) as property
            from prompts
            where run_id = $1
        ) using (prompt_id, occurrence)
        union all
        select scorer, score, 2, 'wrong answer', taken from samples where score = 0
    )
    select
        scorer,
        property,
        left(value, 200) as value,
        count(*) as samples,
        count(*) filter (score = 0) as wrong_samples,
        avg(score) as mean_value
    from properties
    where value is not null
    group by place, scorer, property, properties.value
    qualify place = 0
        or place = 1 and count(*) over (partition by place, property) between 2 and $2
        or place = 2 and count(*) > 1
            and row_number() over (partition by place, property order by count(*) desc, properties.value) <= $2
    order by place, property, mean_value, samples desc, properties.value
"""
"""Samples by finish reason, by each metadata column with few values, and the most frequent wrong answers."""

MOST_EXHIBITS = 6
"""Media shown per prompt; the others are counted."""

EDGE_PIXELS = 240
JPEG_QUALITY = 80
SOUND_S = 10.0
SOUND_RATE_HZ = 8_000


def show_media(media_json: str | None, run_dir: Path | None, edge_pixels: int = EDGE_PIXELS) -> list[Exhibit]:
    """Return copies of a request's media as JPEG and WAV, or a note for each that is not available."""
    if media_json is None or run_dir is None:
        return []
    media: list[Media] = json.loads(media_json)
    shown = [_show(one, run_dir, number, edge_pixels) for number, one in enumerate(media[:MOST_EXHIBITS], start=1)]
    if len(media) > MOST_EXHIBITS:
        shown.append(Exhibit("note", f"and {len(media) - MOST_EXHIBITS:,} more"))
    return shown


def _show(media: Media, run_dir: Path, number: int, edge_pixels: int) -> Exhibit:
    name = f"{media['kind']} {number}"
    spec = MediaSpec(cut_audio=True, video_frames=1)
    try:
        (loaded,), _ = load_all([find_media(media, run_dir)], spec, Hearing(SOUND_RATE_HZ, SOUND_S))
    except MediaError as error:
        return Exhibit("note", f"{name} cannot be shown: {error}")
    if media["kind"] == "audio":
        seconds = len(loaded.value) / SOUND_RATE_HZ
        words = f"{name}, first {SOUND_S:g} s" if seconds >= SOUND_S else f"{name}, {seconds:.1f} s"
        return Exhibit("audio", words, _data_uri("audio/wav", encode_wav(loaded.value, SOUND_RATE_HZ)))
    return Exhibit("image", _describe(name, loaded), _data_uri("image/jpeg", _shrink(loaded, edge_pixels)))


def _describe(name: str, loaded: Loaded) -> str:
    if loaded.media["kind"] == "video":
        return f"{name}, first frame of {loaded.value.seconds:.1f} s"
    return f"{name}, {loaded.value.width} × {loaded.value.height} pixels"


def _shrink(loaded: Loaded, edge_pixels: int) -> bytes:
    from PIL import Image

    image: Any = loaded.value if loaded.media["kind"] == "image" else Image.fromarray(loaded.value.frames[0])
    small = image.copy()
    small.thumbnail((edge_pixels, edge_pixels))
    content = io.BytesIO()
    small.save(content, "JPEG", quality=JPEG_QUALITY)
    return content.getvalue()


def _data_uri(mime: str, content: bytes) -> str:
    return f"data:{mime};base64,{base64.b64encode(content).decode()}"
