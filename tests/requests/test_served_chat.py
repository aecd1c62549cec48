"""Chats that a server renders: what is put around them, and what cannot be done without its tokenizer."""

import pytest

from assayline.errors import SpecError
from assayline.requests.served_chat import ServedChat
from assayline.spec.prompts import ChatSpec

ASKED = {"role": "user", "content": "Why?"}
RULES = {"role": "system", "content": "Briefly."}


def test_messages_go_out_as_they_are_after_the_specs_system_message() -> None:
    chat = ServedChat(ChatSpec(system="Briefly."))
    rendered = chat.render([ASKED])
    assert (rendered.text, rendered.token_ids, rendered.messages) == ("", [], [RULES, ASKED])
    own = {"role": "system", "content": "At length."}
    assert chat.render([own, ASKED]).messages == [own, ASKED]


def test_what_needs_a_tokenizer_is_refused_in_a_sentence() -> None:
    chat = ServedChat(ChatSpec())
    with pytest.raises(SpecError, match=r"likelihood of an option needs a tokenizer.*Set the endpoint to completions"):
        chat.encode(" yes")
    with pytest.raises(SpecError, match="token ids with media needs a tokenizer"):
        chat.encode_media([ASKED])
