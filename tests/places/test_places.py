"""A folder and two object stores are one place: what one of them does, all do, under the same names."""

import os
import threading
import time
from pathlib import Path

import pytest
from store_kit import SECRET, Proxy, use_store

from assayline.errors import SpecError, StoreError
from assayline.places import client as client_module
from assayline.places.client import Client, StoreGoneError, check_url
from assayline.places.folder import Folder
from assayline.places.home import attach, attach_url, open_runs, place_of
from assayline.places.objects import Objects
from assayline.places.place import Place
from assayline.places.probe import probe
from assayline.words import hide_secrets


@pytest.fixture(params=["folder", "moto", "localbucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str) -> Place:
    if request.param == "folder":
        return Folder(tmp_path)
    use_store(request.getfixturevalue(f"{request.param}_port"), monkeypatch)
    return Objects(Client(prefix), tmp_path)


def write(place: Place, key: str, content: bytes) -> None:
    place.write(key, lambda file: file.write(content))


def test_a_key_is_made_once_and_keeps_what_the_first_one_wrote(place: Place) -> None:
    assert place.create("claims/shard", b"one") and not place.create("claims/shard", b"two")
    assert place.read("claims/shard") == b"one" and place.exists("claims/shard")
    assert not place.exists("claims/other")
    with pytest.raises(FileNotFoundError):
        place.read("claims/other")


def test_of_eight_that_claim_at_once_one_wins(place: Place) -> None:
    won: list[tuple[str, int]] = []
    barrier = threading.Barrier(8)

    def claim(number: int) -> None:
        for race in range(5):
            barrier.wait()
            if place.create(f"claims/{race}", b"worker-%d" % number):
                won.append((f"claims/{race}", number))

    threads = [threading.Thread(target=claim, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(key for key, _ in won) == [f"claims/{race}" for race in range(5)]
    assert all(place.read(key) == b"worker-%d" % number for key, number in won)


def test_marks_are_overwritten_and_files_replaced_as_a_whole(place: Place) -> None:
    place.note("beats/one", b"00000001")
    place.note("beats/one", b"left")
    place.note("done/shard")
    write(place, "run.json", b"old and long")
    write(place, "run.json", b"new")
    assert (place.read("beats/one"), place.read("done/shard"), place.read("run.json")) == (b"left", b"", b"new")
    assert place.read_many("beats", ["one", "two"]) == {"one": b"left"}


def test_a_folder_is_listed_and_cleared_and_one_that_is_not_there_is_empty(place: Place) -> None:
    assert place.names("claims") == []
    for name in ("a", "b", "c"):
        place.create(f"claims/{name}", name.encode())
    place.create("claims-of-others", b"")
    assert sorted(place.names("claims")) == ["a", "b", "c"]
    place.remove("claims/b")
    place.remove("claims/b")
    assert sorted(place.names("claims")) == ["a", "c"]
    place.clear("claims")
    assert place.names("claims") == [] and place.exists("claims-of-others")


def test_more_names_than_a_store_lists_at_once(
    localbucket_port: int, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_store(localbucket_port, monkeypatch)
    place = Objects(Client(prefix), tmp_path)
    client_module.do_at_once(lambda number: place.note(f"parts/requests/{number:05d}"), range(1_005))
    assert sorted(place.names("parts/requests")) == [f"{number:05d}" for number in range(1_005)]


def test_what_is_new_in_a_store_is_listed_without_what_was_there(
    localbucket_port: int, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_store(localbucket_port, monkeypatch)
    monkeypatch.setattr("assayline.places.listing.PAGE", 20)
    place, writer = Objects(Client(prefix), tmp_path / "here"), Objects(Client(prefix), tmp_path / "there")
    written: set[str] = set()

    def put(worker: str, number: int) -> None:
        written.add(f"{worker}-{number:06d}-7rows.parquet")
        writer.note(f"parts/completions/{worker}-{number:06d}-7rows.parquet", b"part")

    for number in range(40):
        put("worker-1-aa", number)
        put("worker-3-bb", number)
    assert set(place.names("parts/completions", max_age_s=0.001)) == written
    asked: list[str] = []
    list_after = place._client.list_after

    def note_and_list(folder: str, name: str) -> list[tuple[str, int]]:
        asked.append(name)
        return list_after(folder, name)

    monkeypatch.setattr(place._client, "list_after", note_and_list)
    monkeypatch.setattr(place._client, "list_objects", lambda folder: pytest.fail("all of it"))
    for worker, number in [("worker-1-aa", 40), ("worker-2-cc", 0), ("worker-2-cc", 1), ("worker-3-bb", 40)]:
        put(worker, number)
    time.sleep(0.002)
    assert set(place.names("parts/completions", max_age_s=0.001)) == written
    assert asked == [
        "", "worker-1-aa-000039-7rows.parquet", "worker-3-bb-000039-7rows.parquet", "worker-3-bb-000040-7rows.parquet"
    ]  # fmt: skip
    with pytest.raises(pytest.fail.Exception, match="all of it"):
        place.names("parts/completions")


def test_parts_are_copied_once_and_again_only_where_they_differ(place: Place, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere" if not isinstance(place, Folder) else tmp_path
    other = Objects(Client(place.name), elsewhere) if not isinstance(place, Folder) else place
    for number in range(20):
        write(place, f"parts/requests/{number}", b"part %d" % number)
    names = other.names("parts/requests")
    paths = other.fetch("parts/requests", sorted(names, key=int))
    assert [path.read_bytes() for path in paths] == [b"part %d" % number for number in range(20)]
    assert all(elsewhere in path.parents for path in paths)
    write(place, "parts/requests/3", b"another length")
    other.names("parts/requests")
    assert other.fetch("parts/requests", ["3"])[0].read_bytes() == b"another length"
    assert not list(tmp_path.rglob(".*")), "nothing half copied is left"


def test_a_file_is_moved_and_a_local_one_shared(place: Place, tmp_path: Path) -> None:
    write(place, "parts/requests/one", b"damaged")
    place.move("parts/requests/one", "parts/requests/one.damaged")
    assert place.names("parts/requests") == ["one.damaged"] and place.read("parts/requests/one.damaged") == b"damaged"
    (tmp_path / "report.md").write_text("a report")
    place.share("report.md")
    assert place.read("report.md") == b"a report"


def test_a_store_that_ignores_conditions_is_refused(proxy: Proxy, prefix: str, tmp_path: Path) -> None:
    probe(Client(prefix))
    proxy.drops_conditions = True
    with pytest.raises(StoreError, match=r"ignores conditional puts \(If-None-Match\): of two that made one key, both"):
        open_runs(tmp_path, prefix)
    assert not list(tmp_path.rglob("run.json"))


def test_errors_and_lost_answers_are_repeated_until_it_holds(
    proxy: Proxy, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim whose answer was lost is still this claimant's, and nobody else's."""
    monkeypatch.setattr(client_module, "LONGEST_WAIT_S", 0.1)
    proxy.error_share = proxy.lost_share = 0.3
    store = Client(prefix)
    for number in range(6):
        assert store.create(f"claims/{number}", b"first")
        assert not store.create(f"claims/{number}", b"second")
        store.put(f"parts/{number}", b"part")
    assert len(store.list_objects("parts")) == 6 and proxy.counts["lost"] > 2 and proxy.counts["errors"] > 2


def test_a_store_that_is_gone_for_a_while_is_waited_for_and_then_said(proxy: Proxy, prefix: str) -> None:
    store = Client(prefix, patience_s=60)
    proxy.is_away = True
    threading.Timer(0.5, lambda: setattr(proxy, "is_away", False)).start()
    store.put("key", b"content")
    assert store.get("key") == b"content" and proxy.counts["refused"] > 1
    proxy.is_away = True
    impatient = Client(prefix, patience_s=0.5)
    with pytest.raises(StoreGoneError, match=r"has not answered for 0\.5 s, key: ") as caught:
        impatient.get("key")
    assert "Debug source" not in str(caught.value) and len(str(caught.value)) < 600
    before = proxy.counts["refused"]
    with pytest.raises(StoreGoneError):
        impatient.get("key")
    assert proxy.counts["refused"] == before + 1, "patience is lost once"
    proxy.is_away = False
    assert impatient.get("key") == b"content"


def test_a_bucket_that_is_not_there_and_a_client_that_is_not_installed_are_sentences(
    moto_port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_store(moto_port, monkeypatch)
    with pytest.raises(
        StoreError, match=r"ASSAYLINE_DATA_URL\) cannot be used: s3://nowhere/runs/probes/.*NoSuchBucket"
    ):
        open_runs(tmp_path, "s3://nowhere/runs")
    monkeypatch.setitem(__import__("sys").modules, "obstore", None)
    with pytest.raises(SpecError, match=r"needs the extra `obstore`: pip install 'assayline\[obstore\]'"):
        Client("s3://bucket/other")


@pytest.mark.parametrize("url", ["http://host/bucket", "s3://", "/data", "file:///data"])
def test_a_url_that_is_no_store_is_refused(url: str) -> None:
    with pytest.raises(SpecError, match="is no object store"):
        check_url(url)


@pytest.mark.parametrize("url", [f"s3://key:{SECRET}@bucket/runs", f"az://container/runs?sig={SECRET}"])
def test_a_url_with_a_credential_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(SpecError, match="Credentials belong into the environment") as caught:
        check_url(url)
    assert SECRET not in str(caught.value)


def test_secrets_in_urls_are_hidden() -> None:
    said = hide_secrets(f"GET https://user:{SECRET}@host/key?sig={SECRET}&a=b failed")
    assert said == "GET https://…@host/key?… failed"


def test_a_folder_is_a_copy_of_one_run_alone(tmp_path: Path) -> None:
    run_dir = attach_url("s3://bucket/runs/one/", tmp_path)
    assert run_dir == tmp_path / "one" and run_dir.is_dir()
    attach(run_dir, "s3://bucket/runs/one")
    with pytest.raises(StoreError, match="is the copy of a run at s3://bucket/runs/one, and not of"):
        attach(run_dir, "s3://other/one")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "run.json").touch()
    with pytest.raises(StoreError, match="is a run of its own"):
        attach(tmp_path / "own", "s3://bucket/own")
    assert isinstance(place_of(tmp_path / "own"), Folder)


def test_a_folders_mark_is_written_by_one_call_in_place(tmp_path: Path) -> None:
    """A reader on another machine sees the old number or the new one, and never an empty file."""
    place = Folder(tmp_path)
    place.note("beats/one", b"1" * 20)
    inode = (tmp_path / "beats" / "one").stat().st_ino
    place.note("beats/one", b"2" * 20)
    assert (tmp_path / "beats" / "one").stat().st_ino == inode
    with pytest.raises(FileNotFoundError):
        place.note("beats/two", b"", create=False)


@pytest.mark.parametrize("scheme", ["gs", "az"])
def test_other_providers_take_their_credentials_from_the_environment(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore")
    for name in [name for name in os.environ if name.startswith(("AZURE_", "GOOGLE_"))]:
        monkeypatch.delenv(name)
    if scheme == "az":
        with pytest.raises(SpecError, match="Set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or"):
            Client("az://container/prefix")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "somebody")
    assert Client(f"{scheme}://container/prefix").url == f"{scheme}://container/prefix"


def test_folder_completes_a_short_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A nearly full disk, or a signal, ends a write early and raises nothing."""
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, content: real(descriptor, bytes(content[:3])))
    assert Folder(tmp_path).create("claims/shard", b"long content")
    Folder(tmp_path).note("claims/note", b"other content")
    assert Folder(tmp_path).read("claims/shard") == b"long content"
    assert Folder(tmp_path).read("claims/note") == b"other content"
