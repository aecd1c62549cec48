"""The mirror: runs copied to a real S3 server on loopback, while it fails, and brought back."""

import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import run_kit
import server_kit
from obstore import exceptions
from run_kit import wait_for

from assayline.api.evaluation import evaluate
from assayline.errors import SpecError, StoreError
from assayline.flows.cli import run
from assayline.runs.locks import lock_run
from assayline.settings import Settings
from assayline.spec.evaluation import EvalSpec
from assayline.store import mirror as module
from assayline.store.mirror import Mirror, RunCopy, mirroring

LOG = logging.getLogger("assayline.test_mirror")
_numbers = count()


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with server_kit.serving_store(tmp_path_factory.mktemp("store") / "objects") as port:
        yield port


@pytest.fixture
def proxy(port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[server_kit.Proxy]:
    """Before the server, and where this process finds the store. Nothing waits for long."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    proxy = server_kit.Proxy(port)
    for name, value in server_kit.store_environment(proxy.port).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(module, "SCAN_INTERVAL_S", 0.05)
    monkeypatch.setattr(module, "LONGEST_INTERVAL_S", 0.1)
    monkeypatch.setattr(module, "RETRY_TIMEOUT_S", 3.0)
    yield proxy
    proxy.close()


@pytest.fixture
def url(proxy: server_kit.Proxy, port: int, monkeypatch: pytest.MonkeyPatch) -> str:
    bucket = f"bucket-{next(_numbers)}"
    server_kit.make_bucket(port, bucket)
    monkeypatch.setenv("ASSAYLINE_MIRROR_URL", f"s3://{bucket}/some/prefix")
    return f"s3://{bucket}/some/prefix"


@pytest.fixture
def spec(make_spec: Any) -> EvalSpec:
    made: EvalSpec = make_spec(engine=run_kit.FAKE, prompts={"limit": 24}, shard_requests=8)
    return made


@pytest.fixture
def run_dir(spec: EvalSpec, settings: Settings) -> Path:
    """A run that was killed with some answers."""
    return run_kit.begin_and_vanish(spec, settings, 8, 3).run_dir


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_TIMEOUT_S", 0.1)


def files_of(run_dir: Path) -> dict[str, bytes]:
    """Everything that the mirror is to have."""
    paths = [path for path in run_dir.rglob("*") if path.is_file()]
    left_out = ("flow.lock", "mirrored.jsonl", "logs", "exports")
    named = {path.relative_to(run_dir): path.read_bytes() for path in paths}
    return {str(name): content for name, content in named.items() if name.parts[0] not in left_out}


def stored(url: str, run_id: str) -> dict[str, bytes]:
    mirror, found = Mirror(url), {}
    for name in mirror.list_files(run_id):
        found[name] = bytes(mirror._api.get(mirror._store, f"{run_id}/{name}").bytes())
    return found


def test_mirroring_copies_parts_media_scorers_and_report_but_no_logs(url: str, run_dir: Path) -> None:
    for name in (
        "media/ab/abc", "scorers.json", "report.html", "lm_eval/results.json", "logs/worker-0.log", "exports/x.jsonl",
        "parts/completions/.half.parquet.writing", "parts/completions/bad.parquet.damaged", ".run.json.writing",
    ):  # fmt: skip
        (run_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (run_dir / name).write_text(name)
    with mirroring(Mirror(url), run_dir, LOG):
        pass
    expected = files_of(run_dir)
    for name in list(expected):
        if "writing" in name or "damaged" in name:
            del expected[name]
    assert stored(url, run_dir.name) == expected
    assert {"run.json", "spec.json", "media/ab/abc", "scorers.json"} < expected.keys()


def test_mirroring_copies_new_and_changed_files_alone(url: str, proxy: server_kit.Proxy, run_dir: Path) -> None:
    def put_since() -> list[str]:
        found = sorted(key.partition(f"{run_dir.name}/")[2] for key in proxy.puts)
        proxy.puts.clear()
        return found

    with mirroring(Mirror(url), run_dir, LOG):
        wait_for(lambda: any(key.endswith("run.json") for key in proxy.puts))
        assert len(put_since()) == len(files_of(run_dir))
        (run_dir / "report.html").write_text("new")
        wait_for(lambda: proxy.puts)
        (run_dir / "report.html").write_text("newer")
        wait_for(lambda: len(proxy.puts) == 2)
    assert put_since() == ["report.html"] * 2
    with open(run_dir / "mirrored.jsonl", "a") as record:
        record.write('["s3://cut')  # as a kill leaves it
    shutil.copy(next(run_dir.glob("parts/completions/*")), run_dir / "parts/completions/later-000-8rows.parquet")
    with mirroring(Mirror(url), run_dir, LOG):
        pass
    assert put_since() == ["parts/completions/later-000-8rows.parquet"]
    with mirroring(Mirror(f"{url}/elsewhere"), run_dir, LOG):
        pass
    assert len(put_since()) == len(files_of(run_dir))


def test_mirroring_copies_the_manifest_after_the_parts(
    url: str, proxy: server_kit.Proxy, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch)
    part = next(run_dir.glob("parts/completions/*"))
    proxy.refused_key = part.name
    copy = RunCopy(Mirror(url), run_dir)
    with pytest.raises(StoreError, match=r"500 Internal Server Error.* hint: check that the store is up"):
        copy.update()
    assert "run.json" not in stored(url, run_dir.name)
    proxy.refused_key = None
    copy.update()
    assert proxy.puts[-1].endswith("/run.json") and copy.list_left() == {}


def test_mirroring_waits_for_the_first_rendered_request(url: str, spec: EvalSpec, settings: Settings) -> None:
    """A manifest without a template would not speak of the parts that follow it."""
    evaluation = run_kit.begin_evaluation(spec, settings)
    run_kit.vanish(evaluation)
    with mirroring(Mirror(url), evaluation.run_dir, LOG):
        pass
    assert Mirror(url).list_runs() == []


def test_mirroring_outlives_errors_lost_answers_and_closed_connections(
    url: str, proxy: server_kit.Proxy, run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    faults = [server_kit.SAYS_500, server_kit.SAYS_503, server_kit.LOSES, server_kit.CLOSES]
    proxy.arm(*faults * 3)
    with mirroring(Mirror(url), run_dir, LOG):
        pass
    assert stored(url, run_dir.name) == files_of(run_dir)
    assert not proxy.armed and not caplog.records


@pytest.mark.parametrize("fault", [server_kit.SAYS_503, server_kit.CLOSES])
def test_mirroring_warns_once_and_catches_up_when_the_store_is_back(
    url: str,
    proxy: server_kit.Proxy,
    run_dir: Path,
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    impatient(monkeypatch)
    proxy.fault = fault
    with mirroring(Mirror(url), run_dir, LOG):
        wait_for(lambda: caplog.messages)
        time.sleep(0.5)  # for more warnings, if there were any
        proxy.fault = None
        wait_for(lambda: any(key.endswith("run.json") for key in proxy.puts))
        proxy.fault = fault
        (run_dir / "report.html").write_text("written while the store is down again")
        time.sleep(0.3)
        proxy.fault = None
    assert stored(url, run_dir.name) == files_of(run_dir)
    [said] = caplog.messages
    assert f"The mirror {url} cannot be used: " in said and "The run continues" in said and "hint: check" in said
    assert server_kit.SECRET not in said


def test_mirroring_names_what_is_left_and_the_command_when_the_store_is_down_at_the_end(
    url: str, proxy: server_kit.Proxy, spec: EvalSpec, settings: Settings, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    impatient(monkeypatch)
    proxy.fault = server_kit.CLOSES
    settings = settings.model_copy(update={"mirror_url": url})
    result = evaluate(spec, settings=settings)
    assert result.answered_requests == 24, "the run is complete whatever its mirror does"
    run_dir = settings.run_dir(result.run_id)
    said = caplog.messages[-1]
    number = len(files_of(run_dir))
    assert f"Mirror incomplete: {number} files of run {result.run_id} missing." in said
    assert run("mirror", [result.run_id]) == 6
    proxy.fault = None
    assert run("mirror", ["last"]) == 0
    assert f"{result.run_id}: copied {number} files" in capsys.readouterr().out
    assert stored(url, result.run_id) == files_of(run_dir)
    assert run("mirror", ["--all"]) == 0
    assert f"{result.run_id}: copied no files" in capsys.readouterr().out


def test_mirroring_waits_a_bounded_time_for_a_store_that_hangs(
    url: str,
    proxy: server_kit.Proxy,
    run_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "END_WAIT_S", 0.5)
    proxy.fault = server_kit.HANGS
    started = time.monotonic()
    with mirroring(Mirror(url), run_dir, LOG):
        pass
    assert time.monotonic() - started < 5
    assert f"within 0.5 s after the end of the run. hint: run `assayline mirror {run_dir.name}`" in caplog.messages[-1]
    proxy.fault = None


def test_evaluate_copies_a_run_and_its_end(url: str, spec: EvalSpec, settings: Settings) -> None:
    settings = settings.model_copy(update={"mirror_url": url})
    result = evaluate(spec, settings=settings)
    found = stored(url, result.run_id)
    assert found == files_of(settings.run_dir(result.run_id))
    assert json.loads(found["run.json"])["state"] == "completed"


def test_evaluate_refuses_a_mirror_that_is_none_before_it_makes_anything(
    spec: EvalSpec, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for url, said in (
        ("ftp://host/x", "'ftp://host/x' is not a valid object store URL. hint: use s3://BUCKET/PREFIX"),
        ("s3://", "hint: use s3://BUCKET/PREFIX"),
        ("bucket/prefix", "hint: use s3://BUCKET/PREFIX"),
        (f"s3://key:{server_kit.SECRET}@bucket/x", "'s3://…@bucket/x' is not a valid.* through environment variables"),
        ("file:///nowhere/at/all", "ASSAYLINE_MIRROR_URL, file:///nowhere.*hint: create the folder"),
        ("az://container/x", "Account must be specified. hint: set AZURE_STORAGE_ACCOUNT_NAME"),
    ):
        with pytest.raises(SpecError, match=said):
            evaluate(spec, settings=settings.model_copy(update={"mirror_url": url}))
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(SpecError, match=r"obstore is not installed. hint: pip install 'assayline\[obstore\]'"):
        evaluate(spec, settings=settings.model_copy(update={"mirror_url": "s3://bucket/x"}))
    assert run_kit.list_runs(settings) == []


def test_mirror_explains_a_missing_bucket(proxy: server_kit.Proxy, run_dir: Path) -> None:
    with pytest.raises(StoreError, match=r"s3://none/x cannot be used: .* hint: create the bucket"):
        RunCopy(Mirror("s3://none/x"), run_dir).update()


def test_mirror_explains_credentials_that_may_not_write(url: str, proxy: server_kit.Proxy, run_dir: Path) -> None:
    proxy.fault = server_kit.SAYS_403
    with pytest.raises(StoreError, match=r"403 Forbidden.* hint: set AWS_ACCESS_KEY_ID"):
        RunCopy(Mirror(url), run_dir).update()


def test_mirror_explains_missing_credentials(url: str, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = Mirror(url)

    async def fail(*_: Any, **__: Any) -> None:
        # obstore 0.12.1 without credentials, on a machine that is not an EC2 instance
        raise exceptions.GenericError(
            "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 5.1s, after 10 retries, "
            "max_retries: 10, retry_timeout: 15s  - HTTP error: error sending request\n\nDebug source:\nGeneric {"
        )

    monkeypatch.setattr(mirror._api, "put_async", fail)
    with pytest.raises(StoreError) as caught:
        RunCopy(mirror, run_dir).update()
    assert "no credentials are set" in str(caught.value) and "hint: set AWS_ACCESS_KEY_ID" in str(caught.value)
    assert "Debug source" not in str(caught.value)


def test_mirror_works_in_a_folder(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "nas").mkdir()
    with mirroring(Mirror(f"file://{tmp_path}/nas"), run_dir, LOG):
        pass
    assert files_of(tmp_path / "nas" / run_dir.name) == files_of(run_dir)
    assert Mirror(f"file://{tmp_path}/nas").list_runs() == [run_dir.name]


@pytest.fixture
def elsewhere(url: str, run_dir: Path, spec: EvalSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Another machine's data folder. The run is in the mirror."""
    with mirroring(Mirror(url), run_dir, LOG):
        pass
    monkeypatch.setenv("ASSAYLINE_DATA_DIR", str(tmp_path / "elsewhere" / "data"))
    return run_kit.settings_in(tmp_path / "elsewhere")


def test_restore_brings_a_killed_run_back_to_be_resumed(
    run_dir: Path, spec: EvalSpec, elsewhere: Settings, url: str, proxy: server_kit.Proxy,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert run("restore", ["last", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "run.json\n" in said and f"would download {len(files_of(run_dir))} files" in said
    assert not elsewhere.run_dir(run_dir.name).exists()
    assert run("restore", [run_dir.name]) == 0
    said = capsys.readouterr().out
    assert f"hint: resume it with `assayline evaluate --resume {run_dir.name}`" in said
    assert files_of(elsewhere.run_dir(run_dir.name)) == files_of(run_dir)
    proxy.puts.clear()
    result = evaluate(spec, resume=run_dir.name, settings=elsewhere.model_copy(update={"mirror_url": url}))
    answers = run_kit.query(elsewhere, "select count(*), count(distinct request_id) from completions")
    assert (result.run_id, answers) == (run_dir.name, [(24, 24)])
    assert run_kit.query(elsewhere, "select is_sound from request_integrity") == [(True,)]
    assert not any("/parts/requests/" in key for key in proxy.puts), "what came from the mirror is not sent again"
    assert stored(url, run_dir.name) == files_of(elsewhere.run_dir(run_dir.name))


def test_restore_goes_on_after_a_part_and_replaces_no_part(
    run_dir: Path, elsewhere: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    here = elsewhere.run_dir(run_dir.name)
    part = next(run_dir.glob("parts/completions/*")).relative_to(run_dir)
    (here / part).parent.mkdir(parents=True)
    (here / part).write_bytes(b"mine")
    (here / "spec.json").write_bytes(b"older")
    os.utime(here / "spec.json", (1, 1))
    assert run("restore", [run_dir.name[:-2]]) == 0
    assert "1 already here" in capsys.readouterr().out
    assert files_of(here) == {**files_of(run_dir), str(part): b"mine"}
    (here / "run.json").write_text("{} newer than its copy")
    capsys.readouterr()
    assert run("restore", [run_dir.name]) == 6, "and is not replaced"
    assert (here / "run.json").read_text() == "{} newer than its copy"


def test_restore_refuses_a_run_that_is_worked_on(
    run_dir: Path, elsewhere: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = lock_run(elsewhere.run_dir(run_dir.name))
    assert lock is not None
    assert run("restore", [run_dir.name]) == 6
    assert f"is in use by process {os.getpid()}" in capsys.readouterr().err
    assert run("mirror", [run_dir.name]) == 6
    lock.release()
    assert run("restore", [run_dir.name]) == 0


def test_restore_names_the_command_that_rebuilds_a_finished_run(
    url: str, spec: EvalSpec, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    result = evaluate(spec, settings=settings.model_copy(update={"mirror_url": url}))
    monkeypatch.setenv("ASSAYLINE_DATA_DIR", str(tmp_path / "elsewhere"))
    assert run("restore", [result.run_id]) == 0
    assert f"load it into the database with `assayline rebuild {result.run_id}`" in capsys.readouterr().out
    assert run("rebuild", [result.run_id]) == 0
    assert f"Run {result.run_id}, completed" in capsys.readouterr().out


def test_restore_lists_the_runs_of_the_mirror(
    run_dir: Path, elsewhere: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("restore", []) == 0
    assert capsys.readouterr().out == f"{run_dir.name}  not on this machine\n"
    assert run("restore", ["no-such-run"]) == 2
    said = capsys.readouterr().err
    assert "No run 'no-such-run' in the mirror s3://" in said and "with `assayline restore`" in said


def test_restore_needs_a_mirror_that_answers(
    url: str, proxy: server_kit.Proxy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    impatient(monkeypatch)
    proxy.fault = server_kit.CLOSES
    assert run("restore", []) == 6
    assert "hint: check that the store is up" in capsys.readouterr().err
    monkeypatch.delenv("ASSAYLINE_MIRROR_URL")
    assert run("restore", []) == 2
    assert "ASSAYLINE_MIRROR_URL is not set. hint:" in capsys.readouterr().err
