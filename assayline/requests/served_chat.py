"""Chats that a server renders: messages go out as they are, and its own template makes the prompt."""

from assayline.digests import digest_json
from assayline.prompts import RowError
from assayline.records import AskedBody
from assayline.requests.chat import Message, Rendered
from assayline.spec.prompts import ChatSpec


class ServedChat:
    """Completes conversations by a spec, and leaves the rest to the server.

    `template_id` says what is put around the messages here; the server's own template is its business.
    """

    def __init__(self, spec: ChatSpec) -> None:
        self._system = spec.system
        self.template_id = digest_json({"mode": "served", "system": spec.system, "kwargs": spec.kwargs})

    def render(self, messages: list[Message], body: AskedBody | None = None) -> Rendered:
        """The messages to send. Raises RowError for what a batch file's body wants and messages alone cannot say."""
        if body is not None and (body.text is not None or body.variables or body.continues):
            what = "a prompt that is no chat" if body.text is not None else "tools, or other variables of the template"
            raise RowError(
                "row_error",
                f"The body has {what}, for which prompts must be rendered here. Set engine.server.endpoint to "
                "completions.",
            )
        if self._system is not None and all(message.get("role") != "system" for message in messages):
            messages = [{"role": "system", "content": self._system}, *messages]
        return Rendered("", [], messages)

    def encode(self, text: str) -> list[int]:
        """Only for options, which no server is asked for."""
        raise NotImplementedError("a server that renders has the tokenizer")

    def encode_media(self, messages: list[Message]) -> list[int]:
        """Only for synthetic prompts, which are token ids."""
        raise NotImplementedError("a server that renders has the tokenizer")
