"""Sections about how good the answers are: scores with their uncertainty, and prompts to look at."""

import base64
import io
import json
from pathlib import Path
from typing import Any

from assayline.errors import MediaError
from assayline.media.load import Hearing, Loaded, load_all
from assayline.media.references import find_media
from assayline.media.sounds import encode_wav
from assayline.records import Media
from assayline.report.charts import draw_intervals
from assayline.report.document import Block, Chart, Column, Exhibit, Paragraph, Quote, Sample, Section, tabulate
from assayline.report.run.rows import ReportRows
from assayline.spec.prompts import MediaSpec
from assayline.store.database import Row
from assayline.store.metrics import USUAL_K
from assayline.words import count, show_range, show_share, show_value

MEAN = (
    Column("95% CI", ("mean_low", "mean_high"), show_share),
    Column("standard error", "standard_error", show_share),
)
SCORES = (
    Column("scorer", "scorer"),
    Column("kind", "kind"),
    Column("mean score", "mean", show_share),
    *MEAN,
    Column("without errors", "mean_without_errors", show_share),
    Column("n", "samples", show_value),
    Column("prompts", "prompts", show_value),
    Column("worth n", "effective_samples", show_value),
)
REPEATS = (
    Column("over repeats", "what"),
    Column("scorer", "scorer"),
    Column("mean", "mean", show_share),
    *MEAN,
    Column("prompts", "prompts", show_value),
)


def describe_accuracy(rows: ReportRows) -> Section:
    """Each scorer's mean and interval."""
    section = Section("accuracy", "Accuracy")
    scored = [row for row in rows.accuracy if row["mean"] is not None]
    if not scored:
        section.say(say_unscored(rows))
        return section
    section.add(*_draw(scored))
    section.add(tabulate("Scores", SCORES, scored))
    section.add(*_tabulate_repeats(rows))
    section.say(
        "Errors score 0; the column “without errors” leaves them out. The standard error is clustered by prompt, "
        "and “worth n” is how many independent answers the n amount to: repeats that always agree add nothing."
    )
    return section


def describe_prompts(rows: ReportRows, run_dir: Path | None = None) -> Section:
    """Prompts that the model did worst and best at, with what it read and wrote; media are found by `run_dir`."""
    section = Section("prompts", "Prompts to look at")
    if not any(row["mean"] is not None for row in rows.accuracy):
        section.say(f"There is no worst and no best prompt. {say_unscored(rows)}")
        return section
    scorer = rows.accuracy[0]["scorer"]
    section.say(f"By the scorer {scorer}, one answer of each.")
    if not rows.worst:
        section.say("Every prompt was answered right, so there is no worst one.")
    section.add(*(_show_sample("Among the worst", row, run_dir) for row in rows.worst))
    if not rows.best:
        section.say("No prompt was answered right, so there is no best one.")
    section.add(*(_show_sample("Among the best", row, run_dir) for row in rows.best))
    return section


def say_unscored(rows: ReportRows) -> str:
    """Why a run has no scores."""
    if not rows.summary["answered_requests"]:
        return "No request was answered, so there was nothing to score."
    if rows.run["state"] != "completed":
        return (
            "The run has no scores: it has no targets, or ended before it was scored. "
            f"`assayline score {rows.run['run_id']}` scores what is stored."
        )
    return "Nothing was scored: the prompts have no target, or the spec no scorer."


def _tabulate_repeats(rows: ReportRows) -> list[Block]:
    """What asking again brings: a right answer among k, and the answer that most repeats gave."""
    most = max((row["k"] for row in rows.pass_at_k), default=0)
    rows_over = [
        {**row, "what": f"pass@{row['k']}: one of {row['k']:,} right"}
        for row in rows.pass_at_k
        if row["k"] in (*USUAL_K, most)
    ]
    rows_over += [{**row, "what": "majority vote"} for row in rows.majority_vote]
    if not rows_over:
        return [Paragraph("Every prompt was asked once, so there is no pass@k and no majority vote.")]
    return [tabulate("Repeats", REPEATS, rows_over)]


def _draw(scored: list[Row]) -> list[Block]:
    """A chart, where there are several scorers to look at side by side."""
    estimates = [
        {"name": row["scorer"], "mean": row["mean"], "low": row["mean_low"], "high": row["mean_high"]}
        for row in scored
        if row["mean_low"] is not None
    ]
    if len(estimates) < 2:
        return []
    words = "; ".join(
        f"{row['name']} {show_share(row['mean'])} ({show_range(show_share(row['low']), show_share(row['high']))})"
        for row in estimates
    )
    described = f"Mean score of each scorer with its 95% interval: {words}."
    return [Chart("Mean scores", described, draw_intervals(estimates))]


def _show_sample(title: str, row: Row, run_dir: Path | None) -> Sample:
    repeats = (
        f", mean of {count(row['samples'], 'repeat')} {show_value(row['mean_value'])}" if row["samples"] > 1 else ""
    )
    facts = [("score", show_value(row["value"]) + repeats)]
    if row["explanation"]:
        facts.append(("because", " ".join(row["explanation"].split())))
    quotes = [
        Quote("Rendered prompt", row["rendered"], row["rendered_characters"]),
        *([Quote("Reasoning", row["reasoning"], row["reasoning_characters"])] if row["reasoning"] else []),
        _quote_answer(row),
        Quote("Taken for the answer", row["extracted"], row["extracted_characters"]),
        Quote("Target", row["target"], row["target_characters"]),
    ]
    exhibits = show_media(row["media_json"], run_dir)
    return Sample(f"{title}: row {row['source_row']:,} of the source", facts, quotes, exhibits)


def _quote_answer(row: Row) -> Quote:
    if row["status"] == "error":
        return Quote("Error instead of an answer", row["error_message"], row["error_message_characters"])
    if row["status"] == "missing":
        return Quote("Output", None)
    if row["options"] is not None:
        likelihoods = row["option_logprobs"] or [None] * len(row["options"])
        lines = [
            f"{option}  (log-probability {show_value(logprob)})"
            for option, logprob in zip(row["options"], likelihoods, strict=True)
        ]
        return Quote("Options", "\n".join(lines))
    return Quote("Output", row["answer"], row["answer_characters"])


MOST_EXHIBITS = 6
"""Per prompt; the rest is counted."""

EDGE_PIXELS = 240
JPEG_QUALITY = 80
SOUND_S = 10.0
SOUND_RATE_HZ = 8_000


def show_media(media_json: str | None, run_dir: Path | None) -> list[Exhibit]:
    """What the page shows of a request's media; in words, where they are not to be had any more."""
    if media_json is None or run_dir is None:
        return []
    media: list[Media] = json.loads(media_json)
    shown = [_show(one, run_dir, number) for number, one in enumerate(media[:MOST_EXHIBITS], start=1)]
    if len(media) > MOST_EXHIBITS:
        shown.append(Exhibit("note", f"and {len(media) - MOST_EXHIBITS:,} more"))
    return shown


def _show(media: Media, run_dir: Path, number: int) -> Exhibit:
    name = f"{media['kind']} {number}"
    spec = MediaSpec(cut_audio=True, video_frames=1)
    try:
        (loaded,), _ = load_all([find_media(media, run_dir)], spec, Hearing(SOUND_RATE_HZ, SOUND_S))
    except MediaError as error:
        return Exhibit("note", f"{name} cannot be shown: {error}")
    if media["kind"] == "audio":
        seconds = len(loaded.value) / SOUND_RATE_HZ
        words = f"{name}, its first {SOUND_S:g} s" if seconds >= SOUND_S else f"{name}, {seconds:.1f} s"
        return Exhibit("audio", words, _data_uri("audio/wav", encode_wav(loaded.value, SOUND_RATE_HZ)))
    return Exhibit("image", _describe(name, loaded), _data_uri("image/jpeg", _shrink(loaded)))


def _describe(name: str, loaded: Loaded) -> str:
    if loaded.media["kind"] == "video":
        return f"{name}, its first frame of {loaded.value.seconds:.1f} s"
    return f"{name}, {loaded.value.width} × {loaded.value.height} pixels"


def _shrink(loaded: Loaded) -> bytes:
    from PIL import Image

    image: Any = loaded.value if loaded.media["kind"] == "image" else Image.fromarray(loaded.value.frames[0])
    small = image.copy()
    small.thumbnail((EDGE_PIXELS, EDGE_PIXELS))
    content = io.BytesIO()
    small.save(content, "JPEG", quality=JPEG_QUALITY)
    return content.getvalue()


def _data_uri(mime: str, content: bytes) -> str:
    return f"data:{mime};base64,{base64.b64encode(content).decode()}"
