"""Videos: evenly spaced frames, and where they were."""

import numpy as np
import pytest
from media_kit import BLUE, RED, encode, encode_video, picture

from assayline.errors import MediaError
from assayline.media.videos import decode_video
from assayline.spec.prompts import MediaSpec

FILM = encode_video([picture(64, 48, colour=RED if number < 10 else BLUE) for number in range(20)], rate=10)


def test_frames_are_evenly_spaced_from_first_to_last() -> None:
    video = decode_video(FILM, MediaSpec(video_frames=4))
    assert video.frames.shape == (4, 48, 64, 3)
    assert video.metadata["frames_indices"] == [0, 6, 13, 19]
    assert video.metadata["total_num_frames"] == 20
    assert video.seconds == pytest.approx(2.0, abs=0.11)
    assert video.metadata["fps"] == pytest.approx(10, abs=0.6)
    means = video.frames.reshape(4, -1, 3).mean(axis=1)
    assert [bool(red > blue) for red, _, blue in means] == [True, True, False, False]


def test_a_short_one_gives_all_it_has() -> None:
    assert len(decode_video(encode_video([picture(32, 32)] * 3), MediaSpec()).frames) == 3


def test_frames_are_made_smaller() -> None:
    assert decode_video(FILM, MediaSpec(max_pixels=768)).frames.shape == (8, 24, 32, 3)


@pytest.mark.parametrize("content", [b"", b"no film", encode(picture()), FILM[:200]])
def test_what_is_no_film_is_a_sentence(content: bytes) -> None:
    if content[:4] == b"\x89PNG":  # a picture is a film of one frame to FFmpeg, and is none to us
        assert len(decode_video(content, MediaSpec()).frames) == 1
        return
    with pytest.raises(MediaError, match=r"The video (cannot be read|has no frames)"):
        decode_video(content, MediaSpec())


def test_frames_are_whole_pictures() -> None:
    assert decode_video(FILM, MediaSpec()).frames.dtype == np.uint8
