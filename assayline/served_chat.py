"""Chats that a server renders: what `chat.ChatRenderer` is where we render, without tokenizer and template."""

from typing import Any

from assayline.chat import Rendered, check_parts
from assayline.identity import digest_json
from assayline.spec import ChatSpec

Message = dict[str, Any]


class ServedChat:
    """Completes conversations by a spec, and leaves the rest to the server.

    `template_id` says what is put around the messages here; the server's own template is its business.
    """

    def __init__(self, spec: ChatSpec) -> None:
        self._system = spec.system
        self.template_id = digest_json({"mode": "served", "system": spec.system, "kwargs": spec.kwargs})

    def render(self, messages: list[Message]) -> Rendered:
        """The messages to send. Raises RowError for parts that are not text."""
        conversation = [check_parts(message) for message in messages]
        if self._system is not None and all(message.get("role") != "system" for message in conversation):
            conversation = [{"role": "system", "content": self._system}, *conversation]
        return Rendered("", [], conversation)

    def encode(self, text: str) -> list[int]:
        """Only for options, which no server is asked for."""
        raise NotImplementedError("a server that renders has the tokenizer")
