"""Data set of audio clips and questions about them: beeps of one pitch, at most one in each third of a second.

A row has zero to two clips. A question about a missing clip has the answer `none`, as in examples/seeing.py.

Run: python -m examples.hearing   (writes examples/hearing.jsonl and the folder examples/hearing)
"""

import random
from pathlib import Path
from typing import Any

import numpy as np

from examples.media_rows import Look, ask_about, write_rows

FOLDER = Path(__file__).with_name("hearing")
RATE, SECONDS, SLOTS = 16_000, 1, 3
PITCHES = {"low": (200, 300), "middle": (600, 900), "high": (1800, 2800)}  # Hz
QUESTIONS = {
    "pitch": ("How high is the{which} sound?", "Name the pitch of the{which} sound."),
    "count": ("How many beeps are in the{which} sound?", "Count the beeps in the{which} sound."),
}


def draw_look(draw: random.Random) -> Look:
    """Return the answers about a clip, by task."""
    return {"pitch": draw.choice(list(PITCHES)), "count": str(draw.randint(1, SLOTS))}


def draw_sound(draw: random.Random, look: Look) -> np.ndarray:
    """Make a clip of one second, as 16-bit samples, with random positions, lengths, loudness and pitch of beeps."""
    slot = RATE * SECONDS // SLOTS
    samples = np.zeros(RATE * SECONDS)
    pitch = draw.uniform(*PITCHES[look["pitch"]])
    for number in draw.sample(range(SLOTS), int(look["count"])):
        length = draw.randint(slot // 3, slot // 2)
        start = number * slot + draw.randint(0, slot - length - 1)
        fade = np.minimum(1, np.minimum(np.arange(length), np.arange(length)[::-1]) / 160)
        wave = np.sin(2 * np.pi * pitch * np.arange(length) / RATE)
        samples[start : start + length] = draw.uniform(0.2, 0.6) * fade * wave
    return (samples * 32767).round().astype(np.int16)


def build_rows(seed: int = 7) -> tuple[list[dict[str, Any]], list[np.ndarray]]:
    """Return the rows (examples/hearing.jsonl) and the clips that they number: four of each description."""
    draw = random.Random(seed)
    looks = [{"pitch": pitch, "count": str(count)} for pitch in PITCHES for count in range(1, SLOTS + 1)] * 4
    draw.shuffle(looks)
    sounds = [draw_sound(draw, look) for look in looks]
    return ask_about("audio", [f"hearing/{number:02d}.flac" for number in range(len(looks))], looks, QUESTIONS), sounds


def write_flac(path: Path, samples: np.ndarray) -> None:
    """Encode 16-bit samples as a lossless file."""
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream("flac", rate=RATE, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples[None, :], format="s16", layout="mono")
        frame.sample_rate = RATE
        resampler = av.AudioResampler(format="s16", layout="mono", rate=RATE, frame_size=stream.frame_size)
        for part in [*resampler.resample(frame), *resampler.resample(None)]:
            container.mux(stream.encode(part))
        container.mux(stream.encode(None))


def main() -> None:
    """Write the data set."""
    rows, sounds = build_rows()
    FOLDER.mkdir(exist_ok=True)
    for number, samples in enumerate(sounds):
        write_flac(FOLDER / f"{number:02d}.flac", samples)
    write_rows(FOLDER.with_suffix(".jsonl"), rows)
    print(f"{FOLDER.with_suffix('.jsonl')}: {len(rows)} rows, {len(sounds)} sounds")


if __name__ == "__main__":
    main()
