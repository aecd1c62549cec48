"""Bundle for a machine without network: kernels for its GPU only, archives unpacked once, known versions."""

import lzma
import shutil
import struct
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
for folder in (ROOT / "scripts", ROOT / "scripts" / "offline"):
    sys.path.insert(0, str(folder))

import pack  # noqa: E402
from trim_kernels import ENTRY, HEADER, MACHINE_CODE, MAGIC, PTX, trim  # noqa: E402

CODE_AT = 0x40


def make_entry(kind: int, architecture: int, size: int) -> bytes:
    header = bytearray(64)
    ENTRY.pack_into(header, 0, kind, 0, len(header), size)
    struct.pack_into("<I", header, 28, architecture)
    return bytes(header) + bytes([architecture]) * size


def make_library(*containers: list[bytes]) -> bytearray:
    """A 64-bit ELF file with the sections .nv_fatbin and .shstrtab and nothing else."""
    code = b"".join(HEADER.pack(MAGIC, 1, HEADER.size, len(body := b"".join(c))) + body for c in containers)
    names = b"\0.nv_fatbin\0.shstrtab\0"
    names_at = CODE_AT + len(code)
    table_at = names_at + len(names)
    header = bytearray(CODE_AT)
    header[:4] = b"\x7fELF"
    struct.pack_into("<Q", header, 0x28, table_at)
    struct.pack_into("<HHH", header, 0x3A, 64, 3, 2)
    sections = [(0, 0, 0), (1, CODE_AT, len(code)), (12, names_at, len(names))]
    table = b"".join(struct.pack("<IIQQQQ", name, 1, 0, 0, at, size).ljust(64, b"\0") for name, at, size in sections)
    return bytearray(bytes(header) + code + names + table)


def test_of_each_container_the_kernels_for_one_gpu_are_left_and_nothing_moves():
    old, new, text = make_entry(MACHINE_CODE, 80, 400), make_entry(MACHINE_CODE, 90, 300), make_entry(PTX, 75, 64)
    future = make_entry(PTX, 100, 32)
    library = make_library([old, new, text], [old, text], [old, future])
    size = len(library)
    before, after = trim(library, 90)
    assert len(library) == size and library[:4] == b"\x7fELF"
    assert before == 2 * len(old) + len(new) + 2 * len(text) + len(old) + len(future)
    assert after == len(new) + len(text) + len(future), "machine code, PTX that it can compile, or else the smallest"
    first = CODE_AT + HEADER.size
    assert library[first : first + len(new)] == new and not any(
        library[first + len(new) : first + len(old + new + text)]
    )
    assert HEADER.unpack_from(library, CODE_AT)[3] == len(new), "the header says what is left"


def test_a_library_that_is_read_wrongly_is_not_touched():
    library = make_library([make_entry(7, 80, 40)])
    with pytest.raises(ValueError, match="do not end at"):
        trim(library, 90)


def test_archives_are_the_same_for_the_same_files_and_boot_unpacks_them_once(tmp_path):
    for name, file, text in (("site", "thing.py", "NAME = 'thing'"), ("project", "here.txt", "here")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(text)
        pack.pack(tmp_path / name, name, tmp_path / f"{name}.tar.xz")
    first = (tmp_path / "site.tar.xz").read_bytes()
    (tmp_path / "site" / "thing.py").touch()
    pack.pack(tmp_path / "site", "site", tmp_path / "site.tar.xz")
    assert (tmp_path / "site.tar.xz").read_bytes() == first
    with lzma.open(tmp_path / "site.tar.xz") as file, tarfile.open(fileobj=file) as archive:
        assert {(member.uid, member.mtime) for member in archive} == {(0, 0)}
    shutil.copy(ROOT / "scripts" / "offline" / "boot.sh", tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    command = "source ./boot.sh && pwd && python3 -c 'import thing; print(thing.NAME)' && ls -i $PLACE/unpacked"
    env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "PLACE": str(tmp_path / "place")}
    told = [
        subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    assert told[0] == told[1]
    assert told[0].splitlines()[:2] == [str(tmp_path / "place" / "project"), "thing"]


def test_packages_are_pinned_and_include_vllm_for_that_torch():
    packages = pack.read_packages()
    assert all(package.count("==") == 1 for package in packages)
    assert "vllm==0.26.0" in packages and len(packages) == len(set(packages))
