"""Report sections about answer quality: scores with confidence intervals, and sample prompts."""

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
from assayline.report.answers import Filters, list_answers, read_whole_answers, show_answer, show_prompt
from assayline.report.charts import draw_points
from assayline.report.document import Block, Chart, Column, Exhibit, Paragraph, Sample, Section, tabulate
from assayline.report.run.rows import ReportRows
from assayline.spec.prompts import MediaSpec
from assayline.store.database import Connection, Row, read_rows
from assayline.store.metrics import USUAL_K
from assayline.words import count, show_share, show_value

MEAN = (
    Column("95% CI", ("mean_low", "mean_high"), show_share),
    Column("standard error", "standard_error", show_share),
)
SCORES = (
    Column("scorer", "scorer"),
    Column("kind", "kind"),
    Column("mean score", "mean", show_share),
    *MEAN,
    Column("excl. errors", "mean_without_errors", show_share),
    Column("n", "samples", show_value),
    Column("prompts", "prompts", show_value),
    Column("effective n", "effective_samples", show_value),
)
REPEATS = (
    Column("statistic", "what"),
    Column("scorer", "scorer"),
    Column("mean", "mean", show_share),
    *MEAN,
    Column("prompts", "prompts", show_value),
)

FINISH, WRONG = "finish reason", "wrong answer"
GROUPS = (
    Column("property", "property"),
    Column("value", "value"),
    Column("mean score", "mean_value", show_share),
    Column("n", "samples", show_value),
    Column("scored 0", "wrong_samples", show_value),
)
WRONG_ANSWERS = (Column("answer", lambda row: row["value"] or "(empty)"), Column("n", "samples", show_value))


def describe_accuracy(rows: ReportRows) -> Section | None:
    """Build the accuracy section: mean and interval of each scorer; None without scores."""
    section = Section("accuracy", "Accuracy")
    scored = [row for row in rows.accuracy if row["mean"] is not None]
    if not scored:
        return None
    section.add(*_draw(scored))
    section.add(tabulate("Scores", SCORES, scored))
    section.add(*_tabulate_repeats(rows))
    by_value = [row for row in rows.groups if row["property"] != WRONG]
    if any(row["property"] != FINISH for row in by_value) or len(by_value) > 1:
        section.add(tabulate(f"Mean score of {scored[0]['scorer']} by finish reason and metadata", GROUPS, by_value))
    if wrong := [row for row in rows.groups if row["property"] == WRONG]:
        section.add(tabulate("Wrong answers given most often", WRONG_ANSWERS, wrong, is_folded=True))
    section.say(
        "Errors score 0; the column “excl. errors” leaves them out. Standard errors are clustered by prompt. "
        "“effective n” is the number of independent answers with the same standard error: repeats that always "
        "agree add nothing."
    )
    return section


def describe_prompts(connection: Connection, rows: ReportRows, run_dir: Path | None = None) -> Section | None:
    """Build the section of worst and best prompts, with input, output and media (found in `run_dir`).

    None without scores.
    """
    section = Section("prompts", "Sample prompts")
    if not any(row["mean"] is not None for row in rows.accuracy):
        return None
    scorer, run_id = rows.accuracy[0]["scorer"], rows.run["run_id"]
    section.say(f"Selected by the scorer {scorer}, one answer per prompt.")
    for title, sort, most, unwanted, none in (
        ("Worst", "low", WORST, 1, "Every prompt was answered correctly, which leaves no worst"),
        ("Best", "high", BEST, 0, "No prompt was answered correctly, which leaves no best"),
    ):
        listed = list_answers(run_id, scorer, None, Filters(sort=sort)).read_plain(connection, 1)
        by_prompt: dict[tuple[str, int], str] = {}
        for row in listed:
            if row["score"] not in (None, unwanted):
                by_prompt.setdefault((row["prompt_id"], row["occurrence"]), row["request_id"])
        shown = list(by_prompt.values())[:most]
        if not shown:
            section.say(f"{none} prompts.")
        answers = read_whole_answers(connection, rows.run["run_id"], shown, ["scores", "options", "turns_said"])
        section.add(*(_show_sample(connection, title, rows, answers[request_id], run_dir) for request_id in shown))
    return section


def _tabulate_repeats(rows: ReportRows) -> list[Block]:
    """Tabulate pass@k and majority vote over repeats."""
    most = max((row["k"] for row in rows.pass_at_k), default=0)
    rows_over = [
        {**row, "what": f"pass@{row['k']}: at least one of {row['k']:,} correct"}
        for row in rows.pass_at_k
        if row["k"] in (*USUAL_K, most)
    ]
    rows_over += [{**row, "what": "majority vote"} for row in rows.majority_vote]
    if not rows_over:
        return [Paragraph("Every prompt was sent once, so pass@k and majority vote do not apply.")]
    return [tabulate("Repeats", REPEATS, rows_over)]


def _draw(scored: list[Row]) -> list[Block]:
    """Draw the mean scores if there are several scorers."""
    sure = [row for row in scored if row["mean_low"] is not None]
    if len(sure) < 2:
        return []
    points = [
        {
            "name": row["scorer"],
            **{name: 100 * row[key] for name, key in (("value", "mean"), ("low", "mean_low"), ("high", "mean_high"))},
            "shown": f"{show_share(row['mean'])} ({MEAN[0].cell(row)})",
        }
        for row in sure
    ]
    words = "; ".join(f"{point['name']} {point['shown']}" for point in points)
    described = f"Mean score of each scorer with its 95% interval: {words}."
    return [Chart("Mean scores", described, draw_points(points, "mean score (%)"))]


def _show_sample(connection: Connection, title: str, rows: ReportRows, row: Row, run_dir: Path | None) -> Sample:
    scorer = rows.accuracy[0]["scorer"]
    score = next(one for one in row["scores"] if one["scorer"] == scorer)
    (of,) = read_rows(connection, _MEAN, rows.run["run_id"], scorer, row["prompt_id"], row["occurrence"])
    mean = f", mean of {count(of['samples'], 'repeat')} {show_value(of['mean'])}" if of["samples"] > 1 else ""
    facts = [("score", show_value(score["value"]) + mean)]
    if row["finish_reason"]:
        facts.append(("finish reason", row["finish_reason"]))
    if score["explanation"]:
        facts.append(("because", " ".join(score["explanation"].split())))
    name = f"{title}: row {row['source_row']:,} of the source"
    return Sample(name, facts, [show_prompt(row), *show_answer(row, scorer)], show_media(row["media_json"], run_dir))


_MEAN = """
    select avg(value) as mean, count(*) as samples
    from score
    where run_id = ? and scorer = ? and prompt_id = ? and occurrence = ?
"""
WORST = 5
BEST = 3

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
