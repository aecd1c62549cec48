"""Rows with images and audio: columns, parts of messages, marks, templates, examples, identity."""

import base64
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from media_kit import encode, picture

from assayline.digests import digest_bytes
from assayline.errors import PromptError
from assayline.prompts import BadRow, load_prompts
from assayline.records import Prompt
from assayline.spec.prompts import PromptSpec

PICTURES = {f"{name}.png": encode(picture(4, 4, "L", shade)) for name, shade in {"a": 10, "b": 20, "c": 30}.items()}
A, B, C = (digest_bytes(content) for content in PICTURES.values())
Asked = tuple[list[Any], list[str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder that is not the working folder."""
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    for path in (data, elsewhere):
        path.mkdir()
    for name, content in PICTURES.items():
        (data / name).write_bytes(content)
    monkeypatch.chdir(elsewhere)
    return data


def load(folder: Path, *rows: dict[str, Any], **spec: Any) -> list[Prompt | BadRow]:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {"kind": "file", "path": str(folder / "rows.jsonl")}
    return list(load_prompts(PromptSpec.model_validate({"source": source, **spec})))


def ask(folder: Path, row: dict[str, Any], **spec: Any) -> Asked:
    """(contents of the messages, digests of the media), of the one prompt."""
    (prompt,) = load(folder, row, **spec)
    assert isinstance(prompt, Prompt), prompt.message
    return [message["content"] for message in prompt.messages], [media["digest"] for media in prompt.media or []]


def refused(folder: Path, row: dict[str, Any], **spec: Any) -> str:
    (bad,) = load(folder, row, **spec)
    assert isinstance(bad, BadRow), bad
    assert bad.kind in ("media_error", "row_error")
    return bad.message


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


IMAGE, AUDIO, VIDEO = {"type": "image"}, {"type": "audio"}, {"type": "video"}


TWO = {"x": "a.png", "y": "b.png", "q": "same?"}
TURNS = "{% for page in pages %}Page {{ loop.index }}: {{ page }}\n{% endfor %}"


def shown_by(template: str) -> dict[str, Any]:
    """A spec for rows with two images."""
    return {"columns": {"images": ["x", "y"]}, "template": template}


MARKED = {"columns": {"images": "images"}, "media": {"marks": {"image": "<image>"}}}
PLACES: dict[str, tuple[dict[str, Any], dict[str, Any], Any, list[str]]] = {
    "before the text": ({"i": "a.png", "prompt": "p"}, {"columns": {"images": "i"}}, [IMAGE, text("p")], [A]),
    "none": ({"i": None, "prompt": "p"}, {"columns": {"images": "i"}}, "p", []),
    "columns and lists in their order": (
        {"left": "b.png", "right": ["a.png", "c.png"], "prompt": "p"}, {"columns": {"images": ["left", "right"]}},
        [IMAGE, IMAGE, IMAGE, text("p")], [B, A, C],
    ),
    "kinds in their order": (
        {"i": "a.png", "s": "b.png", "v": "c.png", "prompt": "p"},
        {"columns": {"videos": "v", "audios": "s", "images": "i"}}, [IMAGE, AUDIO, VIDEO, text("p")], [A, B, C],
    ),
    "in a template": (TWO, shown_by("Is {{ x }} like {{ y }}?"),
                      [text("Is "), IMAGE, text(" like "), IMAGE, text("?")], [A, B]),
    "turned by a template": (TWO, shown_by("{{ y }} or {{ x }}"), [IMAGE, text(" or "), IMAGE], [B, A]),
    "the next ones": (TWO, shown_by("{{ image }}{{ image }} {{ q }}"), [IMAGE, IMAGE, text(" same?")], [A, B]),
    "the one left over": (TWO, shown_by("{{ y }}{{ image }}"), [IMAGE, IMAGE], [B, A]),
    "a template without them": (TWO, shown_by("{{ q }}"), [IMAGE, IMAGE, text("same?")], [A, B]),
    "columns of the row": (TWO, shown_by("{{ row.x }}{{ row['y'] }}"), [IMAGE, IMAGE], [A, B]),
    "a walk through a list": (
        {"pages": ["c.png", "a.png"]}, {"columns": {"images": "pages"}, "template": TURNS},
        [text("Page 1: "), IMAGE, text("\nPage 2: "), IMAGE, text("\n")], [C, A],
    ),
    "the same template without media": (
        {"x": None, "q": "?"}, {"columns": {"images": "x"}, "template": "{{ image }}{{ x }}{{ q }}"}, "?", [],
    ),
    "marks in the text": (
        {"images": ["a.png", "b.png"], "prompt": "Compare <image> and <image>."}, MARKED,
        [text("Compare "), IMAGE, text(" and "), IMAGE, text(".")], [A, B],
    ),
    "no marks without media": ({"images": None, "prompt": "none"}, MARKED, "none", []),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_an_image_stands_where_a_template_or_mark_says_or_before_the_text(place, folder):
    row, spec, content, digests = PLACES[place]
    assert ask(folder, row, **spec) == ([content], digests)


def parts_of(folder: Path) -> dict[str, dict[str, Any]]:
    uri = "data:image/png;base64," + base64.b64encode(PICTURES["a.png"]).decode()
    return {
        "OpenAI, a data URI": {"type": "image_url", "image_url": {"url": uri}},
        "OpenAI, a text": {"type": "image_url", "image_url": uri},
        "OpenAI's newer interface": {"type": "input_image", "image_url": uri},
        "OpenAI, a file": {"type": "image_url", "image_url": {"url": (folder / "a.png").as_uri(), "detail": "low"}},
        "Hugging Face, a path": {"type": "image", "image": "a.png"},
        "Hugging Face, a key of its own": {"type": "image", "path": "a.png"},
        "Hugging Face, base64": {"type": "image", "base64": base64.b64encode(PICTURES["a.png"]).decode()},
        "Hugging Face, a URL": {"type": "image", "url": uri},
    }


@pytest.mark.parametrize("form", list(parts_of(Path("/"))))
def test_parts_of_messages_hold_their_own(form, folder):
    messages = [{"role": "user", "content": [text("before"), parts_of(folder)[form], text("after")]}]
    assert ask(folder, {"messages": messages}) == ([[text("before"), IMAGE, text("after")]], [A])


def test_openai_audio_part_is_read(folder):
    data = base64.b64encode(b"any bytes: they are decoded later").decode()
    part = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    contents, digests = ask(folder, {"messages": [{"role": "user", "content": [part]}]})
    assert (contents, digests) == ([[AUDIO]], [digest_bytes(b"any bytes: they are decoded later")])


def test_parts_without_content_take_the_columns_in_order(folder):
    messages = [
        {"role": "user", "content": [IMAGE, text("first?")]},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": [text("and"), {"type": "image", "image": "c.png"}, IMAGE]},
    ]
    contents, digests = ask(folder, {"messages": messages, "images": ["a.png", "b.png"]}, columns={"images": "images"})
    assert contents == [[IMAGE, text("first?")], "yes", [text("and"), IMAGE, IMAGE]]
    assert digests == [A, C, B]


def test_parquet_of_hugging_face(folder):
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table(
        {
            "image": pa.array([{"bytes": PICTURES["a.png"], "path": "x"}, {"bytes": None, "path": "b.png"}], kind),
            "more": pa.array([[{"bytes": PICTURES["c.png"], "path": None}], None], pa.list_(kind)),
            "prompt": ["p", "q"],
        }
    )
    pq.write_table(table, folder / "rows.parquet")
    source = {"kind": "file", "path": str(folder / "rows.parquet")}
    spec = PromptSpec.model_validate({"source": source, "columns": {"images": ["image", "more"]}})
    prompts = [item for item in load_prompts(spec) if isinstance(item, Prompt)]
    assert [[media["digest"] for media in prompt.media or []] for prompt in prompts] == [[A, C], [B]]


@pytest.mark.parametrize(
    ("row", "spec", "words"),
    [
        ({"i": "no.png", "prompt": "p"}, {}, "no.png' cannot be read: No such file"),
        ({"i": 7, "prompt": "p"}, {}, "The image is 7, expected a path"),
        (
            {"i": "a.png", "prompt": "<i> <i>"},
            {"media": {"marks": {"image": "<i>"}}},
            "one more image than the row has",
        ),
        ({"i": ["a.png", "b.png"], "prompt": "<i>"}, {"media": {"marks": {"image": "<i>"}}}, "1 of the row's images"),
        ({"i": None, "prompt": "<i>"}, {"media": {"marks": {"image": "<i>"}}}, "one more image than the row has"),
        ({"i": "a.png"}, {"template": "{{ i }}{{ i }}"}, "or one twice"),
        ({"i": None, "messages": [{"role": "user", "content": [IMAGE]}]}, {}, "one more image than the row has"),
        ({"i": None, "messages": [{"role": "user", "content": [{"type": "pdf"}]}]}, {}, "of type 'pdf', expected text"),
        ({"i": "a.png", "messages": [{"role": "system", "content": "s"}]}, {}, "no message of the user"),
        (
            {"i": None, "messages": [{"role": "user", "content": [{"type": "image", "image": ["a.png", "b.png"]}]}]},
            {},
            "holds 2 media, expected one",
        ),
    ],
)
def test_invalid_media_value_is_one_bad_row(row, spec, words, folder):
    assert words in refused(folder, row, columns={"images": "i"}, **spec)


def test_a_column_that_is_not_there_is_a_mistake_of_the_spec(folder):
    with pytest.raises(PromptError, match=r"Column 'pic', named by prompts.columns.images.*did you mean 'pics'"):
        load(folder, {"pics": "a.png", "prompt": "p"}, columns={"images": "pic"})


def test_prompt_digest_depends_on_image_content_not_on_paths(folder):
    (folder / "copy.png").write_bytes(PICTURES["a.png"])
    uri = "data:image/png;base64," + base64.b64encode(PICTURES["a.png"]).decode()
    rows = [{"i": value, "prompt": "p"} for value in ("a.png", "copy.png", uri, "b.png", None, ["a.png", "b.png"])]
    prompts = [item for item in load(folder, *rows, columns={"images": "i"}) if isinstance(item, Prompt)]
    assert [prompt.occurrence for prompt in prompts] == [0, 1, 2, 0, 0, 0]
    assert len({prompt.prompt_id for prompt in prompts}) == 4
    (without,) = load(folder, {"prompt": "p"})
    assert without.prompt_id == prompts[4].prompt_id, "text alone has the id that it always had"


def test_few_shot_examples_include_their_images(folder):
    rows = [{"i": f"{name}.png", "prompt": f"{name}?", "target": name} for name in "abc"]
    prompts = [
        item for item in load(folder, *rows, columns={"images": "i"}, few_shot={"count": 1}) if isinstance(item, Prompt)
    ]
    assert len(prompts) == 3
    for prompt, own in zip(prompts, (A, B, C), strict=True):
        example, answer, question = prompt.messages
        assert answer["role"] == "assistant"
        assert (example["content"][0], question["content"][0]) == (IMAGE, IMAGE)
        shown, asked = [media["digest"] for media in prompt.media or []]
        assert asked == own
        assert shown == {"a": A, "b": B, "c": C}[answer["content"]]


def test_text_of_a_row_can_be_no_mark(folder):
    """Marks of templates hold a number that no file can contain."""
    row = {"i": "a.png", "q": "\ue000:image:0\ue001 {{ image }}"}
    contents, _ = ask(folder, row, columns={"images": "i"}, template="{{ q }}")
    assert contents == [[IMAGE, text(row["q"])]]
