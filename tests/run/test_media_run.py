"""Complete runs with images and audio: stored rows, checks on resume, and a real engine with audio."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from media_kit import encode, picture
from run_kit import FAKE, ROOT, begin_and_vanish, complete, query

from assayline.errors import PromptsChangedError
from assayline.report.make import make_report
from assayline.spec.evaluation import EvalSpec
from assayline.spec.file import load_spec


@pytest.fixture
def spec(tmp_path: Path, make_spec: Any) -> EvalSpec:
    """Six rows, of which two hold their image, one has a broken path and one has none."""
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(encode(picture(8, 8, "L", number)))
    inside = "data:image/png;base64," + base64.b64encode(encode(picture(8, 8, "L", 9))).decode()
    pictures = ["0.png", "1.png", "2.png", inside, "gone.png", None]
    rows = [{"i": value, "q": f"{number}?", "answer": "x"} for number, value in enumerate([*pictures, inside])]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {"kind": "file", "path": str(tmp_path / "rows.jsonl")}
    return make_spec(
        prompts={"source": source, "columns": {"images": "i", "target": "answer"}, "template": "{{ q }}"},
        chat={"placeholders": {"image": "<image>"}, "template": "plain"},
        engine=FAKE,
        shard_requests=2,
    )  # type: ignore[no-any-return]


def test_parts_hold_references_and_the_runs_folder_what_came_with_the_rows(spec, settings):
    result = complete(spec, settings)
    assert result.answered_requests == 7
    stored = query(
        settings,
        "select rendered, media_json from requests join prompts using (prompt_id, occurrence) order by source_row",
    )
    media = [json.loads(text)[0] if text else None for _, text in stored]
    assert [one and Path(one["path"]).name[:5] for one in media][:3] == ["0.png", "1.png", "2.png"]
    assert media[3] == media[6], "the same content is kept once"
    assert media[4] is None and media[5] is None
    run_dir = settings.run_dir(result.run_id)
    kept = [path for path in (run_dir / "media").rglob("*") if path.is_file()]
    assert [path.read_bytes() for path in kept] == [encode(picture(8, 8, "L", 9))]
    assert [text for text, _ in stored][3] == "<image> 3?"
    ((kind, message),) = query(
        settings, "select error_kind, error_message from completions where error_kind is not null"
    )
    assert kind == "media_error" and "gone.png' cannot be read: No such file" in message
    sizes = sum(path.stat().st_size for path in (run_dir / "parts").rglob("*.parquet"))
    assert sizes < 100_000


def test_image_changed_during_preparation_is_noticed(spec, settings, tmp_path):
    begun = begin_and_vanish(spec, settings, 2)
    (begun.run_dir / "parts" / "requests" / "shard-000003.parquet").unlink()  # so that prompts are read again
    (tmp_path / "1.png").write_bytes(encode(picture(8, 8, "L", 77)))
    with pytest.raises(PromptsChangedError):
        complete(spec, settings)


@pytest.mark.rare
@pytest.mark.vllm
def test_the_hearing_example_is_heard(tiny_alm, settings, monkeypatch):
    monkeypatch.chdir(ROOT)
    result = complete(load_spec(ROOT / "examples" / "hearing.yaml", {"model": str(tiny_alm)}), settings)
    ((accuracy, requests, errors),) = query(settings, "select accuracy, ok_requests, error_requests from main.run")
    assert accuracy >= 0.98 and errors == 0
    rows = [json.loads(line) for line in (ROOT / "examples" / "hearing.jsonl").read_text().splitlines()]
    sounds = [sound for row in rows for sound in (row["audio"] if isinstance(row["audio"], list) else [row["audio"]])]
    sounds = [sound for sound in sounds if sound]
    ((heard, per_s),) = query(settings, "select n, value from metric_value where metric = 'audio_s_per_s'")
    ((seconds, tokens),) = query(settings, "select sum(audio_s), sum(media_tokens) from stg_requests")
    assert (requests, heard) == (len(rows), len(sounds))
    assert seconds == pytest.approx(heard, rel=0.5) and tokens == 25 * round(seconds) and per_s > 0
    page = make_report(settings, result.run_id).html.read_text()
    assert "<audio controls" in page and "data:audio/wav;base64," in page
