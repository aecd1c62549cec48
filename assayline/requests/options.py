"""Options: a prompt that ends in a given answer, for the likelihood of that answer.

Where the prompt ends and the answer begins is decided as the field does it, in lm-evaluation-harness
(`TemplateLM._encode_pair` of lm_eval/api/model.py): white space at the prompt's end belongs to the answer, since
tokenizers join a blank with the word that follows; both are encoded together, and the answer's tokens are those that
come after as many as the prompt alone has. So a token that spans the boundary counts as the prompt's.

The option is put right behind the rendered prompt, as it stands in its column. A prompt without a chat template wants a
blank between them: let the template end in one ("Answer: "), or begin the options with it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from assayline.prompts import RowError
from assayline.requests.chat import Rendered


class Encoder(Protocol):
    """What `chat.ChatRenderer` is to this module."""

    def encode(self, text: str) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class RenderedOption:
    """A prompt with one of its options at its end."""

    option: str
    """As given; the blank that it got from the prompt's end is not in it."""
    text: str
    token_ids: list[int]
    option_tokens: int
    """How many of the last tokens are the option."""


def render_options(prompt: Rendered, options: list[str], encoder: Encoder) -> Iterator[RenderedOption]:
    """Each option behind the prompt. Raises RowError for a prompt without text or an option that has no tokens."""
    context = prompt.text.rstrip()
    prompt_tokens = len(prompt.token_ids if context == prompt.text else encoder.encode(context))
    if prompt_tokens == 0:
        raise RowError(
            "empty_prompt",
            "The prompt has no tokens before its options, expected at least one: the "
            "likelihood of a first token is not known. Is its text empty?",
        )
    for number, option in enumerate(options, start=1):
        text = prompt.text + option
        token_ids = encoder.encode(text)
        if len(token_ids) <= prompt_tokens:
            raise RowError(
                "row_error",
                f"Option {number}, {option!r:.80}, adds no token to the prompt, so that it has "
                "no likelihood of its own. Begin it with a blank, or end the prompt with one.",
            )
        yield RenderedOption(option, text, token_ids, len(token_ids) - prompt_tokens)
