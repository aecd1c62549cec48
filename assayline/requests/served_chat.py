"""Chats that a server renders: messages go out as they are, and its own template makes the prompt."""

from assayline.digests import digest_json
from assayline.requests.chat import Message, Rendered
from assayline.spec.prompts import ChatSpec


class ServedChat:
    """Completes conversations by a spec, and leaves the rest to the server.

    `template_id` says what is put around the messages here; the server's own template is its business.
    """

    def __init__(self, spec: ChatSpec) -> None:
        self._system = spec.system
        self.template_id = digest_json({"mode": "served", "system": spec.system, "kwargs": spec.kwargs})

    def render(self, messages: list[Message]) -> Rendered:
        """The messages to send."""
        if self._system is not None and all(message.get("role") != "system" for message in messages):
            messages = [{"role": "system", "content": self._system}, *messages]
        return Rendered("", [], messages)

    def encode(self, text: str) -> list[int]:
        """Only for options, which no server is asked for."""
        raise NotImplementedError("a server that renders has the tokenizer")

    def encode_media(self, messages: list[Message]) -> list[int]:
        """Only for synthetic prompts, which are token ids."""
        raise NotImplementedError("a server that renders has the tokenizer")
