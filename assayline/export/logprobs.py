"""Names of tokens, where log-probabilities are exported: ids are stored, and the model's tokenizer has their texts."""

from functools import cached_property
from typing import Any

from assayline.errors import AssaylineError, SpecError
from assayline.model import identify_model
from assayline.requests.chat import load_tokenizer


class TokenNames:
    """The tokenizer of a run's spec, opened when the first token is to be named."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._names: dict[str, str] = {}

    def name(self, token: str) -> str:
        """The token's text; `token_id:N`, as vLLM writes it, where the tokenizer is not there any more."""
        if token not in self._names:
            self._names[token] = (
                f"token_id:{token}" if self._tokenizer is None else self._tokenizer.decode([int(token)])
            )
        return self._names[token]

    def describe(self, token: str, logprob: float) -> dict[str, Any]:
        """An entry of a chat completion's log-probabilities."""
        name = self.name(token)
        return {"token": name, "logprob": logprob, "bytes": list(name.encode("utf-8", "replace"))}

    @cached_property
    def _tokenizer(self) -> Any:
        args = self._spec["engine"]["args"]
        given = args.get("tokenizer"), args.get("tokenizer_revision")
        try:
            folder = identify_model(*(given if given[0] else (self._spec["model"], self._spec["revision"]))).folder
            if folder is None:
                raise SpecError(f"Model {self._spec['model']} has no files here.")
            return load_tokenizer(folder)
        except AssaylineError:
            return None
