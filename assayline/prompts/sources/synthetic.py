"""Random prompts of exact token counts, for measuring speed.

The engine is given token ids, so a count is exact by construction. What holds:

- Every id is one of the tokenizer's, none is special or added, and there is no BOS: it would be shared.
- After the shared prefix, a prompt's first tokens spell its number, lowest digit first, in a base of as many digits as
  there are ids to choose from. So no two prompts share even one token of it while `count` is at most that base, and
  no two share `counter_tokens` (2 up to base²) ever: no two share a block of a prefix cache.
- Where the tokenizer has at least `count` words (a space and letters, one token each), only words are used, and the
  text encodes back to the same ids (without special tokens, as a server must be asked to do too). Each
  word was tried. Else ids are drawn from the whole vocabulary, and the text is for reading only.
- The same seed gives the same prompts; each depends on its number alone, so nothing is kept.
"""

import random
import re
from typing import Any

from assayline.errors import ModelError, SpecError
from assayline.media.load import refer_synthetic
from assayline.prompts.row import Reader
from assayline.records import Media, Prompt
from assayline.spec.prompts import SyntheticSource, TokenLength

WORD = re.compile(r"[Ġ▁][A-Za-z]+")
"""A token that begins with a space, as byte-level BPE and SentencePiece write it."""
CHUNK_IDS = 64


class SyntheticPrompts(Reader):
    """A synthetic source under one tokenizer."""

    def __init__(self, source: SyntheticSource, tokenizer: Any) -> None:
        """Raise ModelError for a tokenizer without usable tokens, SpecError for impossible lengths."""
        self._ids = choose_ids(tokenizer, source.count)
        self.counter_tokens = _digits_needed(source.count, len(self._ids))
        self._source = source
        self._tokenizer = tokenizer
        self._least_tokens = source.shared_prefix_tokens + self.counter_tokens
        _check_length(source, self._least_tokens)
        dice = random.Random(source.seed)
        dice.shuffle(self._ids)
        self._prefix = dice.choices(self._ids, k=source.shared_prefix_tokens)

    def _read(self, number: int) -> Prompt:
        """Return the prompt with this number, from 0."""
        dice = random.Random(f"{self._source.seed}/{number}")
        length = _draw_length(dice, self._source.prompt_tokens, self._least_tokens)
        output_tokens = _draw_length(dice, self._source.output_tokens, 1)
        body = dice.choices(self._ids, k=length - self._least_tokens)
        ids = self._prefix + self._spell(number) + body
        text = self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return Prompt(
            messages=[{"role": "user", "content": [*self._make_media(number), {"type": "text", "text": text}]}]
            if self._source.media_kinds
            else [{"role": "user", "content": text}],
            sampling={"max_tokens": output_tokens, "min_tokens": output_tokens, "ignore_eos": True},
            prompt_token_ids=ids,
        )

    def _make_media(self, number: int) -> list[dict[str, Any]]:
        """Return the parts with references, as rows have them."""
        source = self._source
        media: list[Media] = []
        if (images := source.images) is not None:
            media += [
                refer_synthetic(
                    "image",
                    width=images.width,
                    height=images.height,
                    seed=(source.seed * source.count + number) * images.count + at,
                )
                for at in range(images.count)
            ]
        if (audios := source.audios) is not None:
            seeds = ((source.seed * source.count + number) * audios.count + at for at in range(audios.count))
            media += [refer_synthetic("audio", seconds=audios.seconds, seed=seed) for seed in seeds]
        return [{"type": one["kind"], "media": one} for one in media]

    def _spell(self, number: int) -> list[int]:
        digits = []
        for _ in range(self.counter_tokens):
            number, digit = divmod(number, len(self._ids))
            digits.append(self._ids[digit])
        return digits


def choose_ids(tokenizer: Any, words_wanted: int) -> list[int]:
    """Return ids to make prompts of: words, if there are enough. Raises ModelError for fewer than two."""
    usable = usable_ids(tokenizer)
    words = stable_words(tokenizer, usable)
    ids = words if len(words) >= words_wanted else usable
    if len(ids) < 2:
        raise ModelError(
            f"The tokenizer has {len(ids)} tokens that are not special, expected at least 2 to make random prompts of."
        )
    return ids


def usable_ids(tokenizer: Any) -> list[int]:
    """All ids of the vocabulary that are neither special nor added, in order."""
    reserved = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    return sorted(set(tokenizer.get_vocab().values()) - reserved)


def stable_words(tokenizer: Any, ids: list[int]) -> list[int]:
    """Return the ids that are words and survive a round trip through text, next to other words and to themselves."""
    words = [id for id, token in zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True) if WORD.fullmatch(token)]
    stable = []
    for start in range(0, len(words), CHUNK_IDS):
        chunk = words[start : start + CHUNK_IDS]
        # A chunk in one go is sixty times fewer calls; only where it fails are its words tried one by one.
        stable += chunk if _comes_back(tokenizer, chunk) else [id for id in chunk if _comes_back(tokenizer, [id] * 3)]
    return stable


def _comes_back(tokenizer: Any, ids: list[int]) -> bool:
    text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return bool(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] == ids)


def _digits_needed(count: int, base: int) -> int:
    digits = 1
    while base**digits < count:
        digits += 1
    return digits


def _check_length(source: SyntheticSource, least_tokens: int) -> None:
    length = source.prompt_tokens
    given = length.mean if length.min is None else length.min
    if given < least_tokens:
        name = "mean" if length.min is None else "min"
        raise SpecError(
            f"prompts.source.prompt_tokens.{name} is {given}, expected at least {least_tokens}: "
            f"{source.shared_prefix_tokens} shared tokens and {least_tokens - source.shared_prefix_tokens} "
            f"that tell {source.count} prompts apart."
        )


def _draw_length(dice: random.Random, length: TokenLength, least: int) -> int:
    drawn = round(dice.gauss(length.mean, length.stdev)) if length.stdev else length.mean
    return max(length.min or least, min(drawn, length.max or drawn))
