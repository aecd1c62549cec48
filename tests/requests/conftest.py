"""The small tokenizers, for the tests of this folder."""

from tokenizer_kit import session_tokenizer, tokenizer  # noqa: F401
