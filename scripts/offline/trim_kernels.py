"""Trim the GPU code of a compiled library to one architecture.

    python scripts/offline/trim_kernels.py LIBRARY OUT [--sm 90]

vLLM's libraries have their kernels once per architecture, in "fatbin" containers in the section .nv_fatbin: a header
(magic, version, header size, payload size), then entries (kind: 1 PTX, 2 machine code; header size, size; the
architecture at byte 28). In each container, the entries that the GPU can use are moved to the beginning and the rest is
zeroed, which compresses to almost nothing. File size and addresses are unchanged, so nothing else has to change.
"""

import argparse
import struct
from dataclasses import dataclass
from pathlib import Path

MAGIC = 0xBA55ED50
PTX, MACHINE_CODE = 1, 2
HEADER = struct.Struct("<IHHQ")
ENTRY = struct.Struct("<HHIQ")
ARCHITECTURE_AT = 28


@dataclass(frozen=True)
class Entry:
    """One kernel image."""

    kind: int
    architecture: int
    start: int
    size: int


def find_section(library: bytes, name: bytes) -> tuple[int, int]:
    """Return offset and size of a section of a 64-bit ELF file. Raises ValueError."""
    (table,) = struct.unpack_from("<Q", library, 0x28)
    size, count, names = struct.unpack_from("<HHH", library, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", library, table + i * size) for i in range(count)]
    names_at = headers[names][4]
    for name_at, _, _, _, offset, length in headers:
        start = names_at + name_at
        if library[start : library.index(0, start)] == name:
            return offset, length
    raise ValueError(f"no section {name.decode()}")


def read_entries(library: bytearray, start: int, end: int) -> list[Entry]:
    """Parse the entries of a container. Raises ValueError if they do not fill it."""
    entries = []
    while start < end:
        kind, _, header_size, size = ENTRY.unpack_from(library, start)
        if kind not in (PTX, MACHINE_CODE):
            break
        (architecture,) = struct.unpack_from("<I", library, start + ARCHITECTURE_AT)
        entries.append(Entry(kind, architecture, start, header_size + size))
        start += header_size + size
    if start != end:
        raise ValueError(f"the entries of the container at {start:#x} do not end at {end:#x}")
    return entries


def choose(entries: list[Entry], sm: int) -> list[Entry]:
    """Choose machine code for this architecture; else PTX that it can compile; else the smallest entry."""
    code = [entry for entry in entries if entry.kind == MACHINE_CODE and entry.architecture == sm]
    text = [entry for entry in entries if entry.kind == PTX and entry.architecture <= sm]
    return code or text or sorted(entries, key=lambda entry: entry.size)[:1]


def trim(library: bytearray, sm: int) -> tuple[int, int]:
    """Trim the data in place. Return bytes of kernels before and after."""
    position, length = find_section(library, b".nv_fatbin")
    section_end, before, after = position + length, 0, 0
    while position < section_end - HEADER.size:
        magic, _, header_size, size = HEADER.unpack_from(library, position)
        if magic != MAGIC:
            position += 8
            continue
        start, end = position + header_size, position + header_size + size
        entries = read_entries(library, start, end)
        kept = b"".join(bytes(library[e.start : e.start + e.size]) for e in choose(entries, sm))
        library[start:end] = kept + bytes(size - len(kept))
        struct.pack_into("<Q", library, position + 8, len(kept))
        before, after, position = before + size, after + len(kept), end
    return before, after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sm", type=int, default=90, help="architecture, for example 90 for Hopper (default: 90)")
    options = parser.parse_args()
    library = bytearray(options.library.read_bytes())
    before, after = trim(library, options.sm)
    options.out.write_bytes(library)
    print(f"{options.library.name}: {before >> 20} MiB of kernels, {after >> 20} MiB of them kept")


if __name__ == "__main__":
    main()
