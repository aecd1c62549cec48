"""70_media: images, pixels and audio clips per second, and media tokens separately from text."""

import pytest


def answer(at_s, seconds=1.0, **columns):
    return {"arrived_at_s": at_s, "first_token_at_s": at_s, "finished_at_s": at_s + seconds, **columns}


def test_a_run_of_text_has_no_row(store):
    store.given_answers(answer(0.0), answer(1.0))
    assert store.rows("media_use") == []


def test_counts_and_rates_by_hand(store):
    store.given_answers(
        answer(0.0, images=3, image_pixels=3_000_000, media_bytes=10, media_tokens=70, prompt_tokens=100,
               media_prepare_s=0.2, output_tokens=5),
        answer(1.0, images=1, image_pixels=1_000_000, media_bytes=20, media_tokens=30, prompt_tokens=50,
               media_prepare_s=0.4, output_tokens=5),
        answer(2.0, 2.0, audios=1, audio_s=8.0, media_bytes=30, media_tokens=20, prompt_tokens=25,
               media_prepare_s=0.3, output_tokens=5),
        answer(3.0, prompt_tokens=40, output_tokens=5),
        answer(3.0, images=9, image_pixels=9, media_tokens=9, prompt_tokens=9, error_kind="any"),
    )  # fmt: skip
    store.expect(
        "media_use",
        {
            "images": 4,
            "audios": 1,
            "videos": None,
            "images_per_s": 1.0,
            "megapixels_per_s": 1.0,
            "audio_s_per_s": 2.0,
            "video_s_per_s": None,
            "media_tokens_per_s": 30.0,
            "text_tokens_per_s": (55 + 40) / 4,
            "prepare_p50_s": 0.3,
            "prepare_p95_s": 0.39,
        },
    )
    summary = store.row("run_summary")
    use = store.row("media_use")
    assert use["media_tokens_per_s"] + use["text_tokens_per_s"] + summary["output_tokens_per_s"] == pytest.approx(
        summary["total_tokens_per_s"]
    )


def test_a_server_that_does_not_tell_tokens_apart_leaves_them_unknown(store):
    store.given_answers(answer(0.0, images=1, image_pixels=100, prompt_tokens=50, output_tokens=1))
    store.expect("media_use", {"images_per_s": 1.0, "media_tokens_per_s": None, "text_tokens_per_s": None})
