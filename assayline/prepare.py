"""Preparing: from a prompt set to shards of rendered requests, while workers already generate.

Rows are read, templated and rendered one by one and leave as part files of `shard_requests` requests each, so memory
does not grow with the prompt set. A row that cannot become a request is an error row at once: count in = count out.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from assayline.chat import ChatRenderer, load_tokenizer
from assayline.identity import ModelIdentity, identify_model
from assayline.prompts import load_prompts
from assayline.records import Completion, Prompt, Request
from assayline.requests import Prepared, build_requests, max_model_len_of
from assayline.shards import ShardQueue
from assayline.spec import EvalSpec
from assayline.store.parts import write_part


@dataclass(frozen=True, slots=True)
class PromptCounts:
    """What came out of a prompt set."""

    prompt_rows: int
    duplicate_prompts: int
    requests: int
    """Requests to answer, those that failed here included."""
    failed_requests: int
    shards: int


class Preparation:
    """One run's preparation: opening it checks tokenizer, template and the first prompts; `run` writes the shards."""

    def __init__(self, spec: EvalSpec, model: ModelIdentity) -> None:
        self._spec = spec
        args = spec.engine.args
        folder = (
            identify_model(args["tokenizer"], args.get("tokenizer_revision")).folder
            if "tokenizer" in args
            else model.folder
        )
        tokenizer = load_tokenizer(folder, trust_remote_code=bool(args.get("trust_remote_code")))
        self._renderer = ChatRenderer(spec.chat, tokenizer)
        prepared = build_requests(
            spec,
            load_prompts(spec.prompts, tokenizer),
            self._renderer,
            max_model_len_of(model.folder, spec.engine.args),
        )
        self._prepared = itertools.chain([next(prepared)], prepared)  # the first row shows most mistakes

    @property
    def template_id(self) -> str:
        """Digest of the template that renders the prompts."""
        return self._renderer.template_id

    def __iter__(self) -> Iterator[Prepared]:
        """Each prompt row with its requests; only once."""
        return self._prepared

    def run(self, run_dir: Path) -> PromptCounts:
        """Writes every shard, then closes the queue. Raises PromptError for a source that cannot be read on."""
        queue = ShardQueue(run_dir)
        shard = _Shard(run_dir, self._spec.shard_requests)
        rows = duplicates = 0
        for prepared in self:
            rows += 1
            duplicates += prepared.prompt.occurrence > 0
            shard.add(prepared.prompt, prepared.requests, prepared.errors)
            if queue.is_stopped():
                break
        shard.write()
        queue.close()
        return PromptCounts(rows, duplicates, shard.total_requests, shard.total_errors, shard.written)


class _Shard:
    """Rows of the shard that is being filled, and totals over all shards."""

    def __init__(self, run_dir: Path, most_requests: int) -> None:
        self._run_dir = run_dir
        self._most = most_requests
        self._prompts: list[Prompt] = []
        self._requests: list[Request] = []
        self._errors: list[Completion] = []
        self.total_requests = self.total_errors = self.written = 0

    def add(self, prompt: Prompt, requests: list[Request], errors: list[Completion]) -> None:
        """Takes one prompt with all its requests; writes the shard when it is full."""
        self._prompts.append(prompt)
        self._requests.extend(requests)
        self._errors.extend(errors)
        if len(self._requests) >= self._most:
            self.write()

    def write(self) -> None:
        """Writes what there is. Prompts and errors go first: a worker may claim the requests at once."""
        if not self._prompts:
            return
        name = f"shard-{self.written:06d}"
        write_part(self._run_dir, "prompts", name, self._prompts)
        if self._errors:
            write_part(self._run_dir, "completions", f"prepare-{self.written:06d}", self._errors)
        write_part(self._run_dir, "requests", name, self._requests)
        self.total_requests += len(self._requests)
        self.total_errors += len(self._errors)
        self.written += 1
        self._prompts, self._requests, self._errors = [], [], []
