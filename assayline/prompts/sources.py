"""Rows from files, from the spec and from the Hugging Face hub, one at a time.

Nothing is collected: a file of any size needs the memory of a line (JSONL, CSV) or of a few hundred rows (Parquet).
A line that cannot be read is one bad row. A damaged Parquet file is an error of the run, since what follows the damage
cannot be trusted; so is a source whose first rows are all unreadable: it is no damage, but another format.
"""

import glob
from collections.abc import Callable, Iterator
from pathlib import Path

from assayline.errors import PromptError
from assayline.prompts.files import Row, UnreadableRow, read_csv, read_jsonl
from assayline.prompts.json_array import read_json_array
from assayline.spec.sources import FileSource, HubSource, InlineSource, OpenAiBatchSource
from assayline.words import as_sentence

FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".jsonlines": "jsonl",
    ".json-lines": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".parquet": "parquet",
}
HOPELESS_ROWS = 10
"""So many rows at the beginning, none of them readable, are a file of another format."""


class FileRow(Row):
    """A row that knows the folder of its file, which paths in it are relative to."""

    __slots__ = ("folder",)

    def __init__(self, row: Row, folder: Path) -> None:
        super().__init__(row)
        self.folder = folder


def read_rows(source: FileSource | InlineSource | HubSource | OpenAiBatchSource) -> Iterator[Row | UnreadableRow]:
    """Yields the source's rows in its order. Raises PromptError, saying where, for what cannot be read on."""
    match source:
        case InlineSource(rows=rows):
            yield from rows
        case HubSource():
            yield from _read_hub(source)
        case FileSource(path=path, format=given):
            for file in find_files(path):
                yield from _place_rows(file, READERS[_format_of(file) if given == "auto" else given])
        case OpenAiBatchSource(path=path):
            for file in find_files(path):
                yield from _place_rows(file, read_jsonl)


def _place_rows(file: Path, read: Callable[[Path], Iterator[Row | UnreadableRow]]) -> Iterator[FileRow | UnreadableRow]:
    folder = file.parent.absolute()
    for row in read(file):
        yield row if isinstance(row, UnreadableRow) else FileRow(row, folder)


def split_head(rows: Iterator[Row | UnreadableRow]) -> tuple[list[Row | UnreadableRow], Row | None]:
    """Takes rows up to the first that is readable: all that were taken, and that one, or None if there are no rows.

    Raises PromptError where the first HOPELESS_ROWS, or all that there are, cannot be read.
    """
    head: list[Row | UnreadableRow] = []
    for row in rows:
        head.append(row)
        if not isinstance(row, UnreadableRow):
            return head, row
        if len(head) == HOPELESS_ROWS:
            break
    if head and isinstance(first := head[0], UnreadableRow):
        which = "The only row" if len(head) == 1 else f"Each of the first {len(head)} rows"
        raise PromptError(f"{which} cannot be read. {first.message}")
    return head, None


def find_files(pattern: str) -> list[Path]:
    """The file of that name, or the glob's files sorted by name. Raises PromptError where there is none."""
    try:
        path = Path(pattern).expanduser()
        is_folder, is_there = path.is_dir(), path.exists()
    except (OSError, RuntimeError) as error:  # a name that is too long, a ~user that is not there
        raise PromptError(f"Prompt file {pattern!r:.200} cannot be looked for: {error!s:.200}. Give a path.") from None
    if is_folder:
        raise PromptError(f"Prompt file {pattern} is a folder. Give a file, or a glob such as {pattern}/*.jsonl.")
    if is_there:
        return [path]
    if not glob.has_magic(pattern):
        raise PromptError(
            f"Prompt file {pattern} does not exist (working folder: {Path.cwd()}). Give the path of a "
            ".jsonl, .csv or .parquet file, or a glob."
        )
    names = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207 - Path.glob takes no absolute patterns
    files = [Path(name) for name in names if Path(name).is_file()]
    if not files:
        raise PromptError(
            f"No file matches {pattern} (working folder: {Path.cwd()}). Check the glob's folder and ending."
        )
    return files


def _format_of(path: Path) -> str:
    if path.suffix.lower() in (".gz", ".bz2", ".xz", ".zst", ".zip"):
        raise PromptError(f"Prompt file {path} is compressed. hint: decompress it first, for example with gunzip.")
    try:
        return FORMATS[path.suffix.lower()]
    except KeyError:
        raise PromptError(
            f"Prompt file {path} has the ending {path.suffix or '(none)'}, expected one of "
            f"{', '.join(FORMATS)}. Rename it, or set prompts.source.format to jsonl, json, csv or "
            "parquet."
        ) from None


def _read_parquet(path: Path) -> Iterator[Row | UnreadableRow]:
    from assayline.prompts.parquet import read_parquet

    yield from read_parquet(path)


READERS: dict[str, Callable[[Path], Iterator[Row | UnreadableRow]]] = {
    "jsonl": read_jsonl,
    "json": read_json_array,
    "csv": read_csv,
    "parquet": _read_parquet,
}


def _read_hub(source: HubSource) -> Iterator[Row]:
    try:
        import datasets
    except ImportError:
        raise PromptError(
            f"Prompt set {source.dataset!r} is on the Hugging Face hub, which needs the package "
            "`datasets`: pip install 'assayline[hub]'"
        ) from None
    try:
        rows = datasets.load_dataset(
            source.dataset, name=source.subset, split=source.split, revision=source.revision, streaming=True
        )
        yield from (dict(row) for row in rows)
    except Exception as error:  # datasets raises a dozen unrelated types, network errors among them
        raise PromptError(
            f"Hub dataset {source.dataset!r} (subset {source.subset}, split {source.split}, revision "
            f"{source.revision}) cannot be read: {type(error).__name__}: {as_sentence(str(error))} "
            "Check the names, and HF_TOKEN for gated ones."
        ) from None
