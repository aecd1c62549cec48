"""The part of a spec on pictures, sounds and videos: from where they may come, and what is done to them."""

from typing import Literal

from pydantic import Field, field_validator

from assayline.records import MediaKind
from assayline.spec.part import SpecPart

Resampling = Literal["lanczos", "bicubic", "bilinear", "box", "nearest"]


class MediaSpec(SpecPart):
    """What is done to media before the model's own processing; left as they are where nothing is said."""

    marks: dict[MediaKind, str] = Field(
        default_factory=dict,
        description="Text in prompts and messages that stands for the row's next image, audio or video, such as "
        '{image: "<image>"} (default: media stand before the text, or where a template prints them).',
    )
    max_pixels: int | None = Field(
        None, ge=1, description="Larger images are made smaller, to at most so many pixels, in the same proportions."
    )
    resampling: Resampling = Field("lanczos", description="The filter that makes them smaller.")
    cut_audio: bool = Field(
        False, description="Cut a sound that is longer than the model takes; off: such a row is an error row."
    )
    video_frames: int = Field(8, ge=1, description="Frames taken from a video, evenly spaced; all of a shorter one.")
    allowed_domains: list[str] = Field(
        default_factory=list,
        description='Hosts from which http(s) URLs may be fetched, such as images.example.com; ["*"]: any public one. '
        "Empty: a row with a URL is an error row.",
    )
    fetch_timeout_s: float = Field(10.0, gt=0, description="Longest time for fetching one URL.")
    fetch_bytes: int = Field(50_000_000, ge=1, description="Largest content of a URL.")

    @field_validator("marks")
    @classmethod
    def _check_marks(cls, marks: dict[MediaKind, str]) -> dict[MediaKind, str]:
        texts = list(marks.values())
        if not all(texts) or any(a in b for i, a in enumerate(texts) for j, b in enumerate(texts) if i != j):
            raise ValueError(f"expected texts that are not empty and not part of each other, given {texts}")
        return marks
