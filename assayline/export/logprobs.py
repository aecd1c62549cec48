"""Names of tokens, where log-probabilities are exported: ids are stored, and the model's tokenizer has their texts."""

from functools import cached_property
from typing import Any

from assayline.errors import AssaylineError
from assayline.export.rows import ExportedRun
from assayline.model import identify_model
from assayline.requests.chat import load_tokenizer


class TokenNames:
    """The tokenizer of a run's spec, opened when the first token is to be named."""

    def __init__(self, run: ExportedRun) -> None:
        self._run = run
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
        own = self._run.read_spec("engine.args.tokenizer")
        name, revision = (own, "engine.args.tokenizer_revision") if own else (self._run.row["model"], "revision")
        try:
            folder = identify_model(name, self._run.read_spec(revision)).folder
            return None if folder is None else load_tokenizer(folder)
        except AssaylineError:
            return None
