"""Chats that a server renders: messages go out as they are, and its own template makes the prompt."""

from assayline.digests import digest_json
from assayline.errors import SpecError
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
        """Raises SpecError, as does `encode_media`: what needs token ids is refused with the spec, and here again."""
        raise _no_tokenizer("The likelihood of an option")

    def encode_media(self, messages: list[Message]) -> list[int]:
        raise _no_tokenizer("A prompt of token ids with media")


def _no_tokenizer(what: str) -> SpecError:
    return SpecError(
        f"{what} needs a tokenizer, and with engine.server.endpoint chat the server alone has one. Set the endpoint to "
        "completions, or engine.backend to offline or async."
    )
