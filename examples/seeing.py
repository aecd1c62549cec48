"""Data set of images and questions about them: one to three squares of one colour on grey, one per quarter.

A row has zero to two images. A question about a missing image has the answer `none`, so that a lost or swapped image
causes a wrong answer.

Run: python -m examples.seeing   (writes examples/seeing.jsonl and the folder examples/seeing)
"""

import random
from pathlib import Path
from typing import Any

import numpy as np

from examples.media_rows import Look, ask_about, write_rows

FOLDER = Path(__file__).with_name("seeing")
COLOURS = {
    "red": (220, 30, 30),
    "green": (30, 160, 60),
    "blue": (40, 60, 220),
    "yellow": (235, 215, 40),
}
GREY, SIDE, FILE_SIDE = 128, 32, 128
QUESTIONS = {
    "colour": ("What colour is the{which} image?", "Name the colour in the{which} image."),
    "count": ("How many squares are in the{which} image?", "Count the squares in the{which} image."),
}


def draw_look(draw: random.Random) -> Look:
    """Return the answers about an image, by task."""
    return {"colour": draw.choice(list(COLOURS)), "count": str(draw.randint(1, 3))}


def draw_picture(draw: random.Random, look: Look, side: int = SIDE) -> np.ndarray:
    """Make an image, [side, side, RGB], with random positions, sizes and shades of the squares."""
    scale, half = side // SIDE, SIDE // 2
    pixels = np.full((side, side, 3), GREY + draw.randint(-12, 12), np.uint8)
    for quarter in draw.sample(range(4), int(look["count"])):
        size = draw.randint(8, 12)
        top, left = (where * half + draw.randint(0, half - size) for where in divmod(quarter, 2))
        shade = [min(255, max(0, part + draw.randint(-10, 10))) for part in COLOURS[look["colour"]]]
        pixels[top * scale : (top + size) * scale, left * scale : (left + size) * scale] = shade
    return pixels


def build_rows(seed: int = 7) -> tuple[list[dict[str, Any]], list[np.ndarray]]:
    """Return the rows (examples/seeing.jsonl) and the images that they number: three of each description."""
    draw = random.Random(seed)
    looks = [{"colour": colour, "count": str(count)} for colour in COLOURS for count in (1, 2, 3)] * 3
    draw.shuffle(looks)
    pictures = [draw_picture(draw, look, FILE_SIDE) for look in looks]
    return ask_about("image", [f"seeing/{number:02d}.png" for number in range(len(looks))], looks, QUESTIONS), pictures


def main() -> None:
    """Write the data set."""
    from PIL import Image

    rows, pictures = build_rows()
    FOLDER.mkdir(exist_ok=True)
    for number, pixels in enumerate(pictures):
        Image.fromarray(pixels).save(FOLDER / f"{number:02d}.png", optimize=True)
    write_rows(FOLDER.with_suffix(".jsonl"), rows)
    print(f"{FOLDER.with_suffix('.jsonl')}: {len(rows)} rows, {len(pictures)} pictures")


if __name__ == "__main__":
    main()
