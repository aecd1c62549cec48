"""A run at gs://, by a stand-in that takes Google's condition for S3's: what is sent and understood, not Google."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from run_kit import FAKE, complete, query
from store_kit import Google, use_store

from assayline.places import home
from assayline.places.client import Client
from assayline.settings import Settings

pytestmark = pytest.mark.slow


@pytest.fixture
def google(localbucket_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Google]:
    found = Google(localbucket_port)
    use_store(found.port, monkeypatch)
    found.write_key(tmp_path / "key.json")
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(tmp_path / "key.json"))
    home.open_client.cache_clear()
    yield found
    found.close()


def test_of_two_that_make_one_key_at_google_one_wins_and_a_list_tells_what_changed(google: Google) -> None:
    client = Client("gs://bucket/google", patience_s=5)
    assert client.create("claims/one", b"first") and google.conditions == 1
    assert not client.create("claims/one", b"second") and client.get("claims/one") == b"first"
    assert client.create("claims/one", b"first"), "its own bytes are a win: the answer may have been lost"
    client.put("claims/two", b"1")
    before = client.list_tags("claims")
    client.put("claims/two", b"2")
    after = client.list_tags("claims")
    assert before["one"] == after["one"] and None is not before["two"] != after["two"]
    assert client.list_after("claims", "one") == [("two", 1)] and client.list_folders() == ["claims"]
    client.delete(["claims/one"])
    assert not client.exists("claims/one") and client.exists("claims/two")


@pytest.mark.rare
def test_a_run_lives_at_google(make_spec: Any, settings: Settings, google: Google) -> None:
    spec = make_spec(engine=FAKE, prompts={"limit": 24}, shard_requests=8)
    complete(spec, settings.model_copy(update={"data_url": "gs://bucket/runs"}))
    assert query(settings, "select count(*), count(distinct request_id) from completions") == [(24, 24)]
    assert google.conditions >= 3, "claims"
