"""Rows of files, JSONL, CSV, a JSON array or Parquet, and of datasets of the Hugging Face hub, one at a time.

A line that cannot be read is a row of its own, which says why, and the next line is read as if nothing was wrong. Where
there is no place to read on from, it is an error of the run: a CSV header without names, a quote that is never closed,
a broken array, a damaged Parquet file. An object of an array is decoded as soon as all of it is read, as such files
have hundreds of megabytes.

Parquet's values are Python's own, the same on every machine. What a table did to them is undone: an object has the keys
of its own row (`Struct`), whole numbers stay whole next to missing ones, and days have no hour. Three of Arrow's
types are converted: a 32-bit 0.1 would be 0.10000000149011612; nanoseconds need pandas, which may not be there, and are
cut to microseconds; a map would be a list of pairs and is an object.
"""

import codecs
import csv
import glob
import io
import itertools
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from assayline.errors import PromptError
from assayline.prompts.row import FileRow, Number, Row, UnreadableRow, explain_json, unpad
from assayline.spec.prompts import HubSource
from assayline.words import as_sentence

JSON = (".jsonl", ".ndjson", ".jsonlines", ".json-lines", ".json")
ENDINGS = (*JSON, ".csv", ".tsv", ".parquet")
LONGEST_LINE_BYTES = 2**27
"""Bytes of a line of JSON, or characters of a field of CSV. The csv module refuses fields over 131,072 unless told, and
prompts are longer; without any limit, a quote that is never closed makes one field of the rest of the file."""

COMPRESSIONS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
"""By the first bytes of a file."""
BYTE_ORDER_MARK = codecs.BOM_UTF8
CHUNK_BYTES = 2**20
CUT_CHARACTERS = 3
"""With fewer behind it, a number may not be whole: 1e+5 begins with 1."""
_BLANKS = re.compile(r"[ \t\n\r]*")
BATCH_ROWS = 256


def read_files(pattern: str) -> Iterator[FileRow | UnreadableRow]:
    """Yield the rows of a file, or of a glob's files one after another.

    Raises PromptError, saying where, for what cannot be read on.
    """
    for file in find_files(pattern):
        folder = file.parent.absolute()
        name = file.with_suffix("") if file.suffix.lower() in (".gz", ".zst") else file
        read = {".csv": read_csv, ".tsv": read_csv, ".parquet": read_parquet}.get(name.suffix.lower(), read_json)
        for row in read(file):
            yield row if isinstance(row, UnreadableRow) else FileRow(row, folder)


def find_files(pattern: str) -> list[Path]:
    """Return the file of that name, or the glob's files sorted by name. Raises PromptError if there is none."""
    try:
        path = Path(pattern).expanduser()
        is_folder, is_there = path.is_dir(), path.exists()
    except (OSError, RuntimeError) as error:  # a name that is too long, a ~user that is not there
        raise PromptError(
            f"Prompt file {pattern!r:.200} cannot be looked for: {error!s:.200}. hint: pass a path."
        ) from None
    if is_folder:
        ending = next((file.suffix for file in sorted(path.iterdir()) if file.suffix.lower() in ENDINGS), ".jsonl")
        raise PromptError(f"Prompt file {pattern} is a folder. hint: pass a file, or a glob such as {path}/*{ending}.")
    if is_there:
        return [path]
    if not glob.has_magic(pattern):
        hint = "pass the path of a .jsonl, .csv or .parquet file, or a glob."
        if windows := re.match(r"([A-Za-z]):\\", pattern):
            hint = f"this is a path of Windows; in WSL it begins with /mnt/{windows[1].lower()}/."
        raise PromptError(f"Prompt file {pattern} does not exist (working folder: {Path.cwd()}). hint: {hint}")
    names = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207 - Path.glob takes no absolute patterns
    files = [Path(name) for name in names if Path(name).is_file()]
    if not files:
        raise PromptError(
            f"No file matches {pattern} (working folder: {Path.cwd()}). hint: check the glob's folder and ending."
        )
    return files


def read_json(path: Path) -> Iterator[Row | UnreadableRow]:
    """Yield the objects of a file with one per line, or of a file that is an array.

    Raises PromptError for a file of another ending that begins otherwise, and if the rest of a file cannot be read.
    """
    with _open(path) as file:
        begin = file.peek().removeprefix(BYTE_ORDER_MARK).lstrip()[:1]
        if begin == b"[":
            yield from _ArrayReader(path, iter(lambda: file.read(CHUNK_BYTES), b"")).read()
        elif begin == b"{" or {path.suffix.lower(), path.with_suffix("").suffix.lower()} & {*JSON}:
            yield from _read_lines(path, file)
        else:
            raise PromptError(
                f"Prompt file {path} has the ending {path.suffix or '(none)'}, expected one of {', '.join(ENDINGS)}, "
                "with .gz or .zst behind it if need be. hint: rename it."
            )


def _read_lines(path: Path, file: BinaryIO) -> Iterator[Row | UnreadableRow]:
    """Yield one object per line, without blank lines."""
    for number, line in _number_lines(path, file):
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            yield UnreadableRow(_show_bytes(line), f"{path}, line {number}: {_explain_bytes(error)}")
            continue
        if not text.strip():
            continue
        try:
            row = json.loads(text, parse_float=Number)
        except (ValueError, RecursionError) as error:
            problem = (
                f"not JSON ({explain_json(error)}). Expected one JSON object per line; the line begins {text[:60]!r}."
            )
        else:
            if isinstance(row, dict):
                yield row
                continue
            problem = f"holds {_json_type(row)}, expected a JSON object with columns as keys."
        yield UnreadableRow(text, f"{path}, line {number}: {problem}")


def read_csv(path: Path) -> Iterator[Row | UnreadableRow]:
    """Rows by the names in the first line; an empty cell is null. Raises PromptError for a bad header, and for a quote
    that is still open at the end."""
    with _open(path) as file:
        yield from _read_rows(path, _CsvLines(path, file))


def _read_rows(path: Path, lines: "_CsvLines") -> Iterator[Row | UnreadableRow]:
    csv.field_size_limit(LONGEST_LINE_BYTES)
    reader = csv.reader(lines, strict=True, delimiter=lines.find_delimiter())
    header: list[str] = []
    while True:
        first = reader.line_num + 1
        lines.begin_row()
        fields: list[str] = []
        problem = ""
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            problem = (
                f"not CSV ({error}). Expected commas between fields, double quotes around those with commas, and "
                '"" for a quote.'
            )
        where = f"{path}, line {first}" if reader.line_num <= first else f"{path}, lines {first} to {reader.line_num}"
        problem = problem or lines.problem
        if problem and (lines.are_read or not header):
            raise PromptError(f"{where}: {problem}")
        if not header and not problem:
            header = _check_header(fields, path)
        elif fields and len(fields) != len(header):
            problem = (
                f"{len(fields)} fields, expected {len(header)} as in the header ({', '.join(header)}). Quote fields "
                "that hold commas or line breaks."
            )
        elif fields and not problem:
            yield {name: cell or None for name, cell in zip(header, fields, strict=True) if name}
        if problem:
            yield UnreadableRow(lines.text, f"{where}: {problem}")


class _CsvLines:
    """A file's lines for the csv module, which takes several for a row with line breaks in its fields."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._lines: Iterator[tuple[int, bytes]] = _number_lines(path, file)
        self._of_row: list[str] = []
        self.problem = ""
        """Error in the bytes of the row's lines; empty if there is none."""
        self.are_read = False
        """Whether a line was asked for after the last one: the row then has no end."""

    def find_delimiter(self) -> str:
        """Return what is between the names in the first line: a comma, or the first of these signs that is there."""
        head = list(itertools.islice(self._lines, 1))
        self._lines = itertools.chain(head, self._lines)
        return next((sign for sign in ",;\t|" if head and sign.encode() in head[0][1]), ",")

    @property
    def text(self) -> str:
        """The row's lines."""
        return "".join(self._of_row)

    def begin_row(self) -> None:
        """Forget the lines of the previous row."""
        self._of_row, self.problem = [], ""

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        try:
            _, line = next(self._lines)
        except StopIteration:
            self.are_read = True
            raise
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            self.problem = _explain_bytes(error)
            text = _show_bytes(line)
        self._of_row.append(text)
        return text


def _check_header(fields: list[str], path: Path) -> list[str]:
    unnamed = (name for name in fields[1:] if not name.strip())  # the first may be pandas' numbers of rows
    unnamed_or_twice = sorted({*unnamed, *(name for name in fields if fields.count(name) > 1)})
    if unnamed_or_twice:
        raise PromptError(
            f"{path}, line 1: the header has no name, or the same name twice ({unnamed_or_twice}). "
            "Expected a first line of different column names."
        )
    return fields


def _number_lines(path: Path, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield line numbers from 1 and lines with their ends, without a byte order mark."""
    for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE_BYTES), b""), start=1):
        if len(line) == LONGEST_LINE_BYTES:
            raise PromptError(
                f"{path}, line {number}: longer than {LONGEST_LINE_BYTES} bytes. Expected one row per line."
            )
        yield number, line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line


@contextmanager
def _open(path: Path) -> Iterator[io.BufferedReader]:
    """Open a file for reading; one that begins like gzip or Zstandard is decompressed as it is read.

    Raises PromptError if it cannot be read, also in the block.
    """
    try:
        with open(path, "rb") as file:
            kind = next((name for mark, name in COMPRESSIONS.items() if file.peek(4).startswith(mark)), None)
            if kind is None:
                yield file
                return
            import pyarrow as pa

            yield io.BufferedReader(pa.input_stream(file, compression=kind))
    except OSError as error:
        raise PromptError(f"{path} cannot be read: {error.strerror or error}.") from None


def _explain_bytes(error: UnicodeDecodeError) -> str:
    return (
        f"not UTF-8 ({error.reason}, byte {error.start} of the line). Convert the file, for example with "
        "`iconv -t UTF-8`."
    )


def _show_bytes(line: bytes) -> str:
    return line.decode("utf-8", "backslashreplace")


def _json_type(value: Any) -> str:
    names = {list: "an array", str: "a text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")


class _ArrayReader:
    """Text that is read and not decoded yet, and how far it is decoded."""

    def __init__(self, path: Path, chunks: Iterator[bytes]) -> None:
        self._path = path
        self._chunks = chunks
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._text = ""
        self._place = 0
        self._is_ended = False
        self._number = 0

    def read(self) -> Iterator[Row | UnreadableRow]:
        assert self._next_sign() == "[", "its first sign was seen"
        self._place += 1
        if self._next_sign() == "]":
            return
        while True:
            self._number += 1
            self._next_sign()
            row, text = self._decode()
            if isinstance(row, dict):
                yield row
            else:
                kind = type(row).__name__
                yield UnreadableRow(text, f"{self._where}: it is {kind}, expected a JSON object with columns as keys.")
            sign = self._next_sign()
            if sign not in ("]", ","):
                raise PromptError(f"{self._where}: followed by {sign!r}, expected a comma or the array's end.")
            if sign == "]":
                return
            self._place += 1

    @property
    def _where(self) -> str:
        return f"{self._path}, element {self._number}"

    def _decode(self) -> tuple[Any, str]:
        """Return the value that begins here, and its text. Reads on until the value is complete."""
        decoder = json.JSONDecoder(parse_float=Number)
        while True:
            try:
                value, end = decoder.raw_decode(self._text, self._place)
            except (ValueError, RecursionError) as error:
                is_too_long = len(self._text) - self._place > LONGEST_LINE_BYTES
                if is_too_long or not self._grow():
                    raise PromptError(
                        f"{self._where}: not JSON ({error}). The rest of the file cannot be read."
                    ) from None
                continue
            if len(self._text) - end < CUT_CHARACTERS and self._grow():
                continue
            text, self._place = self._text[self._place : end], end
            return value, text

    def _next_sign(self) -> str:
        """Return the next non-blank character; empty at the end of the file."""
        while True:
            found = _BLANKS.match(self._text, self._place)
            self._place = found.end() if found else self._place
            if self._place < len(self._text) or not self._grow():
                return self._text[self._place : self._place + 1]

    def _grow(self) -> bool:
        """Double the text read so far, by at least a chunk, so that a long element is not parsed too often."""
        if self._is_ended:
            return False
        parts = [self._text[self._place :]]
        wanted, self._place = len(parts[0]), 0
        try:
            while True:
                chunk = next(self._chunks, b"")
                self._is_ended = not chunk
                parts.append(self._decoder.decode(chunk, final=self._is_ended))
                wanted -= len(chunk)
                if self._is_ended or wanted <= 0:
                    break
        except UnicodeDecodeError as error:
            raise PromptError(
                f"{self._path}: not UTF-8 ({error.reason}, after element {self._number}). Convert the file, for "
                "example with `iconv -t UTF-8`."
            ) from None
        self._text = "".join(parts)
        return True


def read_parquet(path: Path) -> Iterator[Row]:
    """Yield rows, a batch in memory at a time. Raises PromptError for a file that is damaged."""
    import pyarrow as pa
    from pyarrow import parquet

    rows_read = 0
    try:
        with parquet.ParquetFile(path) as file:
            narrow = _find_narrow(file)
            for batch in file.iter_batches(BATCH_ROWS):
                columns = [
                    _as_python(column.cast(narrow[name]) if name in narrow else column)
                    for name, column in zip(batch.schema.names, batch.columns, strict=True)
                ]
                rows = pa.RecordBatch.from_arrays(columns, names=batch.schema.names).to_pylist(maps_as_pydicts="lossy")
                yield from ({name: unpad(value) for name, value in row.items()} for row in rows)
                rows_read += len(rows)
    except Exception as error:  # a foreign file: besides Arrow's errors there are those of dates, time zones, decimals
        raise PromptError(
            f"{path}, after row {rows_read}: not readable as Parquet ({str(error).strip()}). The file is "
            "damaged, of another format, or has values that Python cannot represent, such as a date in the year "
            "100,000. hint: write the file again."
        ) from None


def _find_narrow(file: Any) -> dict[str, Any]:
    """Return the types of columns whose values a table has widened: whole numbers next to missing ones, and days."""
    import pyarrow as pa

    found = {}
    for field in file.schema_arrow:
        is_day = pa.types.is_timestamp(field.type) and field.type.tz is None
        if not is_day and field.type not in (pa.float32(), pa.float64()):
            continue
        narrow, missing = pa.date32() if is_day else pa.int64(), 0
        for batch in file.iter_batches(columns=[field.name]):
            column = batch.column(0)
            missing += column.null_count
            if not column.cast(narrow, safe=False).cast(field.type, safe=False).equals(column):
                break
        else:
            if is_day or missing:
                found[field.name] = narrow
    return found


def _as_python(column: Any) -> Any:
    """Return the column with types that Python can represent; 32-bit floats convert by their shortest text."""
    import pyarrow as pa

    texts, doubles = _replace(column.type, pa.string()), _replace(column.type, pa.float64())
    return column if doubles == column.type else column.cast(texts, safe=False).cast(doubles)


def _replace(given: Any, float32: Any) -> Any:
    """Return an Arrow type with 32-bit floats and nanoseconds replaced, also inside lists and objects."""
    import pyarrow as pa

    if pa.types.is_timestamp(given) and given.unit == "ns":
        return pa.timestamp("us", given.tz)
    if pa.types.is_struct(given):
        return pa.struct([field.with_type(_replace(field.type, float32)) for field in given])
    if pa.types.is_list(given):
        return pa.list_(given.value_field.with_type(_replace(given.value_type, float32)))
    if pa.types.is_large_list(given):
        return pa.large_list(given.value_field.with_type(_replace(given.value_type, float32)))
    others = {
        pa.float32(): float32,
        pa.time64("ns"): pa.time64("us"),
        pa.duration("ns"): pa.duration("us"),
    }
    return others.get(given, given)


def _narrow(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def read_hub(source: HubSource) -> Iterator[Row]:
    """Rows of a dataset of the Hugging Face hub, streamed; offline, of its snapshot in the hub's cache.

    Raises PromptError. A whole number has no point, because a stream does not show whether a missing value has widened
    its column.
    """
    try:
        import datasets
        from huggingface_hub import snapshot_download
    except ImportError:
        raise PromptError(
            f"Prompt set {source.dataset!r} is on the Hugging Face hub, which needs the package "
            "`datasets`: pip install 'assayline[hub]'"
        ) from None
    try:
        place, revision = source.dataset, source.revision
        if datasets.config.HF_HUB_OFFLINE and not Path(place).exists():
            place, revision = snapshot_download(place, repo_type="dataset", revision=revision), None
        rows = datasets.load_dataset(place, name=source.subset, split=source.split, revision=revision, streaming=True)
        yield from ({name: _narrow(unpad(value)) for name, value in row.items()} for row in rows)
    except Exception as error:  # datasets raises a dozen unrelated types, network errors among them
        raise PromptError(
            f"Hub dataset {source.dataset!r} (subset {source.subset}, split {source.split}, revision "
            f"{source.revision}) cannot be read: {type(error).__name__}: {as_sentence(str(error))} "
            "Check the names, and HF_TOKEN for gated ones. Without a network, set HF_HUB_OFFLINE=1 to read the hub's "
            "cache, which `hf download --repo-type dataset` fills."
        ) from None
