"""Separate thinking and answer: in a finished text, and during generation, for stops that apply to the answer.

vLLM looks for stop texts in everything that a model writes, and a blank line in the thinking would end it. So for a
reasoning model, the engine core withholds the stops from vLLM and looks for them itself, step by step, from the first
character of the answer on.

The answer begins with the first character after the closing tag that is not white space. Without a closing tag
everything is thinking, and the answer is empty: mostly max_tokens was too small, as finish_reason shows. If a chat
template opens the thinking in the prompt, the model writes no opening tag; if it closes it there (thinking switched
off), everything is answer. A prefill begins the answer, unless the thinking is open in it or before it.
"""

from collections.abc import Sequence

from assayline.spec.engine import ReasoningSpec


def thinks(spec: ReasoningSpec | None, prompt: str | None, prefill: str | None = None) -> bool:
    """Return whether a model begins with thinking after this prompt, which ends with the prefill, if there is one."""
    if spec is None:
        return False
    prefill = (prefill or "").strip()  # as many templates do
    if spec.open in prefill or spec.close in prefill:
        return prefill.rfind(spec.open) > prefill.rfind(spec.close)
    before = (prompt or "").rstrip().removesuffix(prefill).rstrip()
    return before.endswith(spec.open) or not (prefill or before.endswith(spec.close))


def split_reasoning(text: str, spec: ReasoningSpec) -> tuple[str, str]:
    """Return thinking and answer, without the tags and the white space around the thinking."""
    thinking, _, answer = text.partition(spec.close)
    return thinking.strip().removeprefix(spec.open).strip(), answer.lstrip()


class AnswerStops:
    """A search for stop texts in a growing answer, which it cuts as vLLM would: before the stop, or after it."""

    def __init__(self, stops: Sequence[str], close: str, *, keep_stop: bool = False, min_tokens: int = 0) -> None:
        """Start a search. `close` ends the thinking; no stop counts within `min_tokens` of thinking and answer.

        As in vLLM, a stop that is complete within them never counts, even if later tokens add no text.
        """
        self.text = ""
        self._stops = list(stops)
        self._close = close
        self._keep_stop = keep_stop
        self._min_tokens = min_tokens
        self._overlap = max(map(len, [*stops, close])) - 1
        self._answer_at: int | None = None
        self._searched_to = 0

    def feed(self, piece: str, tokens: int) -> str | None:
        """Add a piece of text, `tokens` in all so far. Returns the stop that ends the answer; cuts `text` there."""
        self.text += piece
        if self._answer_at is None:
            self._find_answer()
        stop = self._find_stop() if self._answer_at is not None and tokens > self._min_tokens else None
        if self._answer_at is not None:
            self._searched_to = max(self._answer_at, len(self.text))
        return stop

    def _find_answer(self) -> None:
        """Find the answer's beginning, if the text includes it."""
        at = self.text.find(self._close, max(0, self._searched_to - self._overlap))
        if at < 0:
            self._searched_to = len(self.text)
        elif answer := self.text[at + len(self._close) :].lstrip():
            self._answer_at = self._searched_to = len(self.text) - len(answer)

    def _find_stop(self) -> str | None:
        """Return the stop that is complete first; of two at once, the first in the list."""
        begin = self._answer_at or 0
        starts = [max(begin, self._searched_to - len(stop) + 1) for stop in self._stops]  # it ends in the new text
        places = [(self.text.find(stop, starts[number]), number) for number, stop in enumerate(self._stops)]
        ends = [(at + len(self._stops[number]), number) for at, number in places if at >= 0]
        if not ends:
            return None
        end, number = min(ends)
        stop = self._stops[number]
        self.text = self.text[: end if self._keep_stop else end - len(stop)]
        return stop
