"""Sources: one row of `SOURCES` each, which says where its rows come from and what reads them.

Rows come one at a time, so a file of any size needs the memory of a line (JSONL, CSV) or of a few hundred rows
(Parquet). A line that cannot be read is one bad row; a source that cannot be read on is an error of the run.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn

from assayline.errors import PromptError
from assayline.media.references import MediaStore
from assayline.prompts.columns import RowReader
from assayline.prompts.row import Reader
from assayline.prompts.sources.batch import BatchReader
from assayline.prompts.sources.files import read_files, read_hub
from assayline.prompts.sources.functions import read_function
from assayline.prompts.sources.sharegpt import ShareGptReader
from assayline.prompts.sources.synthetic import SyntheticPrompts
from assayline.prompts.sources.traces import TracePrompts, read_trace
from assayline.spec.prompts import AnySource, PromptSpec

Rows = Iterator[Any]
"""Of `Row | UnreadableRow`; of a synthetic source, numbers."""


def read_columns(source: AnySource, spec: PromptSpec, tokenizer: Any, media_store: MediaStore | None) -> Reader:
    """Return a reader of rows by the spec's columns and template."""
    return RowReader(spec.columns, spec.template, spec.media, media_store)


def refuse_rows(source: AnySource) -> Iterator[NoReturn]:
    """Raise PromptError: stored answers are an argument of `load_prompts`; `store/answers.py` reads them."""
    raise PromptError(f"Rows of a source of kind {source.kind} are in the database, which is not open here.")


class SourceKind(NamedTuple):
    rows: Callable[[Any], Rows]
    """Gives the rows of a source in their order. Raises PromptError, saying where, for what cannot be read on."""
    reader: Callable[[Any, PromptSpec, Any, MediaStore | None], Reader] = read_columns
    """Make their reader from the source, its spec, a tokenizer, and the folder for media that come inside rows."""


SOURCES: dict[str, SourceKind] = {
    "file": SourceKind(lambda source: read_files(source.path)),
    "inline": SourceKind(lambda source: iter(source.rows)),
    "hub": SourceKind(read_hub),
    "python": SourceKind(read_function),
    "sharegpt": SourceKind(lambda source: read_files(source.path), ShareGptReader),
    "openai_batch": SourceKind(
        lambda source: read_files(source.path),
        lambda source, spec, tokenizer, media_store: BatchReader(spec.media, media_store),
    ),
    "trace": SourceKind(read_trace, lambda source, spec, tokenizer, media_store: TracePrompts(source, tokenizer)),
    "synthetic": SourceKind(
        lambda source: iter(range(source.count)),
        lambda source, spec, tokenizer, media_store: SyntheticPrompts(source, tokenizer),
    ),
    "run": SourceKind(refuse_rows),
    "pairs": SourceKind(refuse_rows),
}
"""By `prompts.source.kind`. A task of lm-evaluation-harness is none: it writes its requests itself (`harness/`)."""


def read_rows(source: AnySource) -> Rows:
    return SOURCES[source.kind].rows(source)


def open_reader(spec: PromptSpec, tokenizer: Any, media_store: MediaStore | None) -> Reader:
    """Return the reader of a spec's source."""
    return SOURCES[spec.source.kind].reader(spec.source, spec, tokenizer, media_store)
