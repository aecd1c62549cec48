"""How long a prompt with media is, asked of the server before the prompt is sent.

Only the server knows how many tokens it makes of a picture. vLLM's `/tokenize` says so, and processes the media for it,
which costs as much as the request itself does before its first step. So it is asked only where the prompt may be too
long: media of the same sizes take the same number of tokens, and a text has at most one token for each byte. What slips
through the server refuses itself.
"""

import openai

from assayline.engines.host.server.body import RequestWriter
from assayline.engines.host.server.client import BROKEN, ServedClient
from assayline.engines.host.server.media import Filled
from assayline.errors import MediaError
from assayline.records import Json

MOST_SIZES = 4096
"""How many sizes are remembered; then it begins anew."""


class PromptLengths:
    """Lengths of one server's prompts."""

    def __init__(self, client: ServedClient, writer: RequestWriter) -> None:
        self._client = client
        self._url = client.url.removesuffix("/v1") + "/tokenize"
        self._writer = writer
        self._is_there = writer.has_extensions and writer.endpoint == "chat"
        self._beside_text: dict[object, int] = {}
        """By sizes of the media and number of messages: at most so many tokens apart from those of the text."""

    async def check(self, filled: Filled) -> None:
        """Raises MediaError (prompt_too_long) for a prompt that leaves no room for an answer."""
        most = self._writer.max_model_len
        sizes = (filled.sizes, len(filled.messages))
        known = self._beside_text.get(sizes)
        if most is None or not self._is_there or (known is not None and known + filled.text_bytes < most):
            return
        tokens = await self._ask(filled)
        if tokens is None:
            return
        if known is None and len(self._beside_text) >= MOST_SIZES:
            self._beside_text.clear()
        self._beside_text[sizes] = tokens if known is None else min(known, tokens)
        if tokens >= most:
            raise MediaError(
                f"The prompt has {tokens} tokens with its media, as the server counts them, but the context is {most} "
                "tokens (max_model_len), at least one of them for the answer. Shorten it, or make its images smaller "
                "with prompts.media.max_pixels.",
                kind="prompt_too_long",
            )

    async def _ask(self, filled: Filled) -> int | None:
        """Tokens with media expanded; None where the server does not say. What is wrong then, the request will show."""
        body: dict[str, Json] = {"model": self._writer.model, "messages": filled.messages}
        if self._writer.chat_kwargs:
            body["chat_template_kwargs"] = self._writer.chat_kwargs
        try:
            tokens = (await self._client.ask(self._url, body)).get("count")
        except openai.APIStatusError as error:
            self._is_there = error.status_code not in (404, 405)
            return None
        except (openai.OpenAIError, *BROKEN):
            return None
        except (ValueError, AttributeError):
            tokens = None
        self._is_there = isinstance(tokens, int)
        return tokens if isinstance(tokens, int) else None
