"""The viewer in a real browser, and what its server refuses."""

import contextlib
import html
import json
import signal
import socket
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import duckdb
import flow_kit
import httpx
import pytest
import uvicorn
from judge_kit import give_judge, give_judge_run, vote
from markupsafe import escape
from media_kit import encode, encode_sound, picture, tone
from row_kit import NIGHT, NIGHT_BEFORE, Sad, Store, plan_of
from run_kit import ROOT, completion_of, manifest_of, wait_for

from assayline.benchmark.campaign import new_campaign, write_campaign
from assayline.errors import StoreError
from assayline.media.references import MediaStore
from assayline.run.rebuild import rebuild_run
from assayline.settings import Settings
from assayline.store.database import connect
from assayline.store.locks import lock_run
from assayline.store.manifest import PromptCounts, write_manifest
from assayline.store.parts import write_part
from assayline.store.thread import DatabaseReader
from assayline.store.viewer import find_viewer
from assayline.view.pages import mark_changes, read_markdown
from assayline.view.server import Guard, make_guard
from examples.two_weeks import NIGHTS, make_database

pytestmark = pytest.mark.slow
HOSTILE = (
    "<script>document.title='pwned'</script><img src='http://leak.invalid/img' onerror=\"document.title='pwned'\">"
    "</pre></textarea>' or 1=1; drop table raw.runs; --"
)
BENCHMARK = f"bench {HOSTILE}"
SUITE = "20261121-020000-suite-release-0001"
WATCH = "window.broken = []; addEventListener('securitypolicyviolation', (e) => broken.push(e.blockedURI), true);"
LOOK = """({
  wide: document.documentElement.scrollWidth > innerWidth, broken, title: document.title,
  status: performance.getEntriesByType('navigation')[0].responseStatus,
  foreign: performance.getEntriesByType('resource').map((one) => one.name).filter((name) => !name.startsWith(origin)),
})"""


class Viewer:
    """A viewer that serves, and clients of it."""

    def __init__(self, settings: Settings, guard: Guard) -> None:
        self.settings = settings
        self.guard = guard
        self.url = f"http://127.0.0.1:{guard.port}"
        self.client = httpx.Client(base_url=self.url, cookies={guard.cookie: guard.token}, timeout=120)

    def read(self, query: str) -> list[tuple[Any, ...]]:
        with connect(self.settings.database_path, 30, read_only=True) as connection:
            return connection.execute(query).fetchall()


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    folder = tmp_path_factory.mktemp("data")
    settings = Settings(data_dir=folder, database_wait_s=60)
    make_database(folder, NIGHTS[:2])
    with connect(settings.database_path, 10) as connection:
        store = Store(connection)
        prompts = store.read("select prompt_id, value from score where run_id = ? order by all", NIGHT)
        votes = [
            vote(row["prompt_id"], "correct" if i % 3 else "incorrect", run=NIGHT) for i, row in enumerate(prompts)
        ]
        give_judge(store, votes)
        give_judge_run(store, "judge", NIGHT, rubric="right")
        messages = json.dumps([{"role": HOSTILE, "content": HOSTILE}])
        names = dict.fromkeys(("run_id", "name", "model", "prompt_set", "note"), HOSTILE)
        store.given("runs", {**names, "tags": [HOSTILE], "job": {HOSTILE: HOSTILE}})
        connection.execute("update raw.runs set tags = ['ci'], note = 'a full disk' where run_id = ?", [NIGHT])
        key = {"run_id": HOSTILE, "prompt_id": HOSTILE}
        store.given("prompts", {**key, "messages_json": messages, "target": HOSTILE, "metadata_json": messages})
        store.given("requests", {**key, "request_id": HOSTILE, "rendered": HOSTILE})
        store.given(
            "completions", {"run_id": HOSTILE, "request_id": HOSTILE, "text": HOSTILE * 3, "reasoning": HOSTILE}
        )
        store.given("scorers", {"run_id": HOSTILE, "scorer": HOSTILE})
        store.given("scores", {**key, "scorer": HOSTILE, "value": 0.0, "extracted": HOSTILE, "explanation": HOSTILE})
    sad = Sad(settings)
    times = {"arrived_at_s": 1.0, "first_token_at_s": 1.5, "last_token_at_s": 2.0, "finished_at_s": 2.0}
    answer = {**times, "output_tokens": 3, "text": HOSTILE, "rendered": HOSTILE, "target": HOSTILE, "score": 0.0}
    sad.given("sad", "failed", answer, {"error_kind": HOSTILE, "error_message": HOSTILE}, message=HOSTILE)
    with connect(settings.database_path, 10) as connection:
        connection.execute("update raw.runs set benchmark_id = ? where run_id = 'sad'", [BENCHMARK])
    row = {"evaluation": HOSTILE, "model": "m", "tier": "critical", "run_id": NIGHT, "against": NIGHT_BEFORE}
    figures = dict.fromkeys(("candidate", "baseline", "difference"), 0.5)
    judged = {**row, **figures, **dict.fromkeys(("verdict", "interval", "p_value", "failed", "open"), HOSTILE)}
    page = {"headline": [HOSTILE], "counted": ["fail"], "evaluations": [judged], "limits": [[HOSTILE, HOSTILE]]}
    suite = new_campaign("suite", "release", [], [], runs={"sums · m": [NIGHT]}, decision="NO-GO", page=page)
    write_campaign(replace(suite, campaign_id=SUITE), settings)
    suite = new_campaign("suite", "release", [], [], runs={"sums · m": ["other"]})
    write_campaign(replace(suite, campaign_id=f"{SUITE}-b"), settings)
    listener = socket.create_server(("127.0.0.1", 0))
    guard = make_guard(settings, "127.0.0.1", listener.getsockname()[1])
    server = uvicorn.Server(uvicorn.Config(guard, lifespan="off", log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield Viewer(settings, guard)
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def tab(viewer: Viewer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[flow_kit.Page]:
    if flow_kit.BROWSER is None:
        pytest.skip("no chromium here to open the pages with")
    with flow_kit.opened_browser(tmp_path_factory.mktemp("browser")) as tab:
        tab.call("Page.enable")
        tab.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
        tab.open(f"{viewer.url}/?token={viewer.guard.token}")
        tab.wait_for("document.title === 'Runs · assayline' && !location.search")
        yield tab


def press(tab: flow_kit.Page, *keys: str) -> None:
    for key in keys:
        text = {"text": "\r", "windowsVirtualKeyCode": 13} if key == "Enter" else {"text": key}
        tab.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        tab.call("Input.dispatchKeyEvent", type="keyUp", key=key)


def wait_for_text(tab: flow_kit.Page, text: str) -> None:
    tab.wait_for(f"document.readyState === 'complete' && {flow_kit.PAGE_TEXT}.includes({json.dumps(text)})")


def test_two_runs_to_their_audit_by_keyboard(viewer: Viewer, tab: flow_kit.Page) -> None:
    tab.open(viewer.url)
    wait_for_text(tab, "nightly")
    press(tab, "j", "x", "j", "x", "c")
    wait_for_text(tab, "12 prompts got worse and 2 better")
    assert tab.ask("document.querySelectorAll('.row').length") == 14
    press(tab, "j", "Enter")
    wait_for_text(tab, "1 of 14")
    assert tab.ask("[...document.querySelectorAll('.pair mark')].map((one) => one.textContent)") == ["8", "9"]
    for place in range(1, 11):
        wait_for_text(tab, f"{place} of 14")
        press(tab, "2" if place < 8 else "1")
    wait_for_text(tab, "11 of 14")
    press(tab, "k")
    wait_for_text(tab, "withdraw")
    rows = viewer.read("select * exclude (labelled_at) from label order by labelled_at")
    assert [row[5] for row in rows] == ["incorrect"] * 7 + ["correct"] * 3
    assert {(row[0], row[4]) for row in rows} == {(NIGHT, "right")} and rows[0][6]
    press(tab, "a")
    wait_for_text(tab, "agreement with labels")
    query = "select count(*) filter (verdict = label), count(*) from judgement where label is not null"
    agreed = viewer.read(query)[0]
    assert agreed[1] == 10
    wait_for_text(tab, f"{10 * agreed[0]}%")
    # A rebuilt database has the labels, which the run's folder keeps.
    rebuild_run(viewer.settings.run_dir(NIGHT), viewer.settings.data_dir / "new.duckdb", 10)
    with connect(viewer.settings.data_dir / "new.duckdb", 10) as connection:
        kept = connection.execute("select * exclude (labelled_at) from label order by labelled_at").fetchall()
    assert kept == rows


def test_pages_fit_run_nothing_of_a_row_and_load_nothing(viewer: Viewer, tab: flow_kit.Page) -> None:
    request = viewer.read(f"select request_id from request where run_id = '{NIGHT}' order by source_row limit 1")[0][0]
    given: list[tuple[str, dict[str, str]]] = [
        ("/", {}),
        ("/", {"text": HOSTILE, "model": HOSTILE, "sort": HOSTILE}),
        ("/run", {"run": NIGHT}),
        ("/run", {"run": "sad"}),
        ("/answers", {"run": NIGHT, "text": HOSTILE, "scorer": HOSTILE, "error": HOSTILE, "page": HOSTILE}),
        ("/answers", {"run": HOSTILE}),
        ("/answer", {"run": HOSTILE, "request": HOSTILE}),
        ("/compare", {"run": NIGHT, "baseline": NIGHT_BEFORE, "sort": HOSTILE, "change": HOSTILE}),
        ("/pair", {"run": NIGHT, "baseline": NIGHT_BEFORE, "request": request}),
        ("/answer", {"run": NIGHT, "request": request, "score": "none"}),
        ("/history", {"name": "nightly"}),
        ("/leaderboard", {}),
        ("/benchmark", {"id": BENCHMARK}),
        ("/suite", {"id": SUITE}),
        ("/run", {"run": HOSTILE * 2}),
    ]
    for path, names in given:
        url = str(httpx.URL(viewer.url + path, params=names))
        for width, scheme in ((390, "dark"), (1280, "light")):  # loaded by the narrow window, which becomes a wide one
            tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            tab.call("Emulation.setDeviceMetricsOverride", **size)
            if width == 390:
                tab.open(url)
                tab.wait_for(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")
            tab.wait_for("[...document.querySelectorAll('.plot')].every((plot) => plot.querySelector('svg'))")
            found = tab.ask(LOOK)
            assert (found["wide"], found["broken"], found["foreign"]) == (False, [], []), (path, names, width)
            assert tab.list_violations() == [], (path, names, scheme)
            assert found["title"] != "pwned" and found["status"] in (200, 404), (path, names)
    assert viewer.read("select count(*) from raw.runs where run_id <> 'chat'") == [(5,)]


def test_a_running_run_shows_its_progress_until_it_ends(viewer: Viewer, tab: flow_kit.Page) -> None:
    run_dir = viewer.settings.run_dir("20270101-000000-running-0001")
    counts = PromptCounts(prompt_rows=9, duplicate_prompts=0, requests=9, failed_requests=0, shards=1)
    run = replace(manifest_of(run_dir.name), prompts=counts)
    write_manifest(run_dir, run)
    lock = lock_run(run_dir)
    assert lock is not None
    for path in ("/", f"/run?run={run_dir.name}"):
        tab.open(viewer.url + path)
        wait_for_text(tab, "running")
    tab.wait_for("document.querySelector('progress').value === 0")
    write_part(run_dir, "completions", "part-1", [completion_of(f"r{i}") for i in range(4)])
    tab.wait_for("document.querySelector('progress').value === 4")
    write_manifest(run_dir, replace(run, state="failed"))
    lock.release()
    wait_for_text(tab, "is not in the database")  # it ended before the database had a row


def test_requests_without_the_token_or_from_elsewhere_are_refused(viewer: Viewer) -> None:
    token, own = viewer.guard.token, {"origin": viewer.url}
    cookie = {"cookie": f"{viewer.guard.cookie}={token}"}
    with httpx.Client(base_url=viewer.url) as stranger:
        assert stranger.get("/").status_code == 403
        assert stranger.get("/?token=x").status_code == 403
        assert stranger.get("/", headers={"cookie": f"{viewer.guard.cookie}=x"}).status_code == 403
        assert stranger.get("/", headers=cookie | {"host": "attacker.example"}).status_code == 421
        for host in ("127.0.0.1:1", "localhost", "[::1]:80"):  # of a tunnel
            assert stranger.get("/", headers=cookie | {"host": host}).status_code == 200
        admitted = stranger.get(f"/?token={token}&state=failed")
        assert (admitted.status_code, admitted.headers["location"]) == (303, "/?state=failed")
        assert {"HttpOnly", "SameSite=strict"} <= set(admitted.headers["set-cookie"].split("; "))
    labelled = len(viewer.read("from raw.labels"))
    for headers in ({}, {"origin": "http://attacker.example"}, {"origin": "null"}):
        assert viewer.client.post(f"/answer?run={NIGHT}", headers=headers).status_code == 403
    request = viewer.read(f"select request_id from request where run_id = '{NIGHT}' limit 1")[0][0]
    unknown = {"rubric": "right", "label": HOSTILE}
    answer = viewer.client.post(f"/answer?run={NIGHT}&request={request}", data=unknown, headers=own)
    assert answer.status_code == 404 and len(viewer.read("from raw.labels")) == labelled
    odd = viewer.client.post(f"/answer?run={NIGHT}&request={request}", content=b"label=\xff&rubric=right", headers=own)
    assert odd.status_code == 404
    # An answer that its list does not have any more can still be labelled.
    left, known = f"/answer?run={NIGHT}&request={request}&score=none", {"rubric": "right", "label": "correct"}
    assert viewer.client.post(left, data=known, headers=own).status_code == 303
    assert len(viewer.read("from raw.labels")) == labelled + 1
    for path in ("/static/..%2f..%2fpages.py", "/static/answers.html", "/run?run=../../../etc", "/answer?run=..", "/x"):
        assert viewer.client.get(path).status_code == 404, path
    page = viewer.client.get("/")
    assert "script-src 'self';" in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"


class Proxy(BaseHTTPRequestHandler):
    """A reverse proxy with a login, which does what the nginx of docs/guides/viewing.md does."""

    viewer: Viewer

    def do_GET(self) -> None:
        if self.headers["authorization"] != f"Basic {b64encode(b'alice:secret').decode()}":
            self.send_response(401)
            self.end_headers()
            return
        own = f"http://{self.headers['host']}"
        given = {name.lower(): value for name, value in self.headers.items() if name.lower() != "host"}
        if given.get("origin") == own:
            given["origin"] = self.viewer.url
        content = self.rfile.read(int(given.get("content-length", 0)))
        answer = httpx.request(self.command, f"{self.viewer.url}{self.path}", headers=given, content=content)
        self.send_response(answer.status_code)
        for name in ("location", "set-cookie"):
            if name in answer.headers:
                self.send_header(name, answer.headers[name])
        self.end_headers()
        self.wfile.write(answer.content)

    do_POST = do_GET


def test_a_proxy_with_a_login_passes_pages_and_labels_on(viewer: Viewer) -> None:
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Proxy,), {"viewer": viewer}))
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    own = f"http://eval.example:{proxy.server_port}"
    labelled = len(viewer.read("from raw.labels"))
    request = viewer.read(f"select request_id from request where run_id = '{NIGHT}' limit 1")[0][0]
    path, known = f"/answer?run={NIGHT}&request={request}", {"rubric": "right", "label": "correct"}
    with proxy, httpx.Client(base_url=f"http://127.0.0.1:{proxy.server_port}", headers={"host": own[7:]}) as team:
        assert team.get("/").status_code == 401
        team.auth = ("alice", "secret")
        assert team.get("/").status_code == 403
        admitted = team.get(f"/?token={viewer.guard.token}")
        assert (admitted.status_code, admitted.headers["location"]) == (303, "/")
        team.headers["cookie"] = admitted.headers["set-cookie"].partition(";")[0]  # as of eval.example
        assert NIGHT in team.get("/").text
        assert team.post(path, data=known, headers={"origin": "http://attacker.example"}).status_code == 403
        assert team.post(path, data=known, headers={"origin": own}).status_code == 303
        proxy.shutdown()
    assert len(viewer.read("from raw.labels")) == labelled + 1


def test_benchmarks_and_suites_link_to_their_runs_and_back(viewer: Viewer) -> None:
    with connect(viewer.settings.database_path, 30) as connection:
        connection.execute("update raw.runs set purpose = 'suite' where run_id = ?", [NIGHT])
    link = str(httpx.URL("/benchmark", params={"id": BENCHMARK}))
    shown = viewer.client.get("/").text
    assert html.escape(link) in shown and f'<a href="/suite?id={SUITE}">{SUITE}</a>: NO-GO' in shown
    assert HOSTILE not in viewer.client.get(link).text and viewer.client.get(link).status_code == 200
    for path in ("/benchmark?id=none", "/benchmark?id=../runs", "/suite?id=none", "/suite?id=../suites"):
        assert viewer.client.get(path).status_code == 404
    assert f'<a href="/run?run={NIGHT}">{NIGHT}</a>' in viewer.client.get(f"/suite?id={SUITE}").text
    assert "1 run has begun. The decision follows the last run." in viewer.client.get(f"/suite?id={SUITE}-b").text
    assert BENCHMARK not in viewer.client.get("/?purpose=suite").text
    write_campaign(plan_of("planned", ["c"], ["as given"], repeats=9), viewer.settings)
    with connect(viewer.settings.database_path, 30) as connection:
        connection.execute("update raw.runs set benchmark_id = 'planned' where run_id = 'sad'")
    assert "9 runs are left to do" in viewer.client.get("/benchmark?id=planned").text


@pytest.mark.parametrize(
    "chosen", ["", "&score=wrong", "&sort=slow&text=plus", "&error=any", "&label=none&score=right", "&page=2"]
)
def test_the_sql_of_a_page_has_its_rows(viewer: Viewer, chosen: str) -> None:
    for path in (f"/answers?run={NIGHT}", f"/compare?run={NIGHT}&baseline={NIGHT_BEFORE}&change=all"):
        page = viewer.client.get(path + chosen).text
        sql = page.partition('<pre id="sql" tabindex="0">')[2].partition("</pre>")[0]
        with duckdb.connect(viewer.settings.database_path, read_only=True) as connection:
            rows = connection.execute(html.unescape(sql)).fetchall()
        shown = [part.partition("&")[0].partition('"')[0] for part in page.split("request=")[1:]]
        assert [row[1] for row in rows] == shown, path
        assert rows


def test_an_answer_shows_its_media_and_turns(viewer: Viewer) -> None:
    kept = MediaStore(viewer.settings.run_dir("chat"))
    media = [kept.keep("image", encode(picture())), kept.keep("audio", encode_sound(tone()))]
    with connect(viewer.settings.database_path, 30) as connection:
        store = Store(connection)
        store.given("runs", {"run_id": "chat"})
        store.given("prompts", {"run_id": "chat", "prompt_id": "p"})
        for turn, asked in enumerate(("first?", "second?")):
            said = {"turn_messages_json": json.dumps([{"role": "user", "content": asked}]), "turn_index": turn}
            key = {"run_id": "chat", "request_id": f"r{turn}"}
            store.given("requests", {**key, **said, "prompt_id": "p", "turns": 2, "media_json": json.dumps(media)})
            store.given("completions", {**key, "text": f"answer {turn}"})
    page = viewer.client.get("/answer?run=chat&request=r1").text
    places = [
        page.index(text) for text in ("first?", "answer 0", "second?", "data:image/jpeg", "data:audio/wav", "answer 1")
    ]
    assert places == sorted(places)
    listed = viewer.client.get("/answers?run=chat").text
    assert "request=r1" in listed and "request=r0" not in listed


def test_markdown_of_an_answer_runs_and_loads_nothing() -> None:
    page = read_markdown("# Sum\n\n|a|b|\n|-|-|\n|1|2|\n\n<script>x()</script> ![i](http://x/i.png) [l](javascript:x)")
    assert "<h1>Sum</h1>" in page and "<td>1</td>" in page
    assert "<script" not in page and "<img" not in page and 'href="javascript' not in page


def test_changed_words_are_marked() -> None:
    before, after = mark_changes("It is 8 apples.", "It is 9 red apples.")
    assert [text for is_changed, text in before if is_changed] == ["8"]
    assert "".join(text for _, text in after) == "It is 9 red apples."
    assert "".join(text for is_changed, text in after if not is_changed) == "It is  apples."
    long = "word " * 9_000
    assert mark_changes(long, f"{long}\n")[0] == [(True, long)]


def test_reader_stores_missing_metrics_and_ends_a_long_query(viewer: Viewer) -> None:
    with connect(viewer.settings.database_path, 30) as connection:
        connection.execute("delete from raw.measured_runs where run_id = ?", [NIGHT_BEFORE])
    assert viewer.client.get("/history?name=nightly").status_code == 200
    assert viewer.read(f"select count(*) from raw.measured_runs where run_id = '{NIGHT_BEFORE}'") == [(1,)]
    endless = "select count(*) from range(10_000_000) one join range(10_000_000) two on one.range < two.range"
    with pytest.raises(StoreError, match=r"The query took longer than 0\.1 s"):
        DatabaseReader(viewer.settings, 0.1).read(lambda connection: connection.execute(endless).fetchall())


def test_a_slow_page_blocks_no_other_and_a_label_waits_for_it(viewer: Viewer) -> None:
    reader = DatabaseReader(viewer.settings, 60)
    began, may_end, ended = threading.Event(), threading.Event(), []

    def read_slowly(connection: duckdb.DuckDBPyConnection) -> None:
        began.set()
        may_end.wait(60)
        ended.append(connection.execute("select count(*) from run").fetchall())

    slow = threading.Thread(target=reader.read, args=[read_slowly])
    slow.start()
    began.wait(60)
    runs = reader.read(lambda connection: connection.execute("select count(*) from run").fetchall())
    assert not ended
    message = "update raw.runs set message = 'slow' where run_id = 'sad'"
    label = threading.Thread(target=reader.write, args=[lambda connection: connection.execute(message)])
    label.start()
    may_end.set()
    for thread in (slow, label):
        thread.join(60)
    assert ended == [runs] and viewer.read("select message from raw.runs where run_id = 'sad'") == [("slow",)]


def test_a_worse_run_is_not_green_and_lists_name_their_columns_and_filters(viewer: Viewer) -> None:
    listed = viewer.client.get("/").text
    heads = '<div class="heads run"><div></div><div>run</div><div>model, prompts</div><div>verdict</div>'
    assert heads in listed and '<span class="state state-worse">worse</span>' in listed
    assert '<a class="chip" href="/?tag=ci">ci</a>' in listed and '<option value="ci">' in listed
    for given in ("?tag=ci", "?text=full+disk"):
        found = viewer.client.get(f"/{given}").text
        assert f"/run?run={NIGHT}" in found and NIGHT_BEFORE not in found
    wrong = viewer.client.get(f"/answers?run={NIGHT}&score=wrong&page=1").text
    expected = viewer.read(f"select count(*) from score where run_id = '{NIGHT}' and value = 0")[0][0]
    assert f"{expected} answers with these filters" in wrong and 'Remove the filter score: wrong"' in wrong
    long = viewer.client.get("/answers", params={"run": HOSTILE}).text
    assert f" … {escape(HOSTILE[-140:])}</div>" in long and '<span class="note">read as</span>' in long


WRITER = """
import sys
from pathlib import Path
from assayline.store.database import connect
for number in range(5):
    with connect(Path(sys.argv[1]), 60) as connection:
        connection.execute("update raw.runs set message = ? where run_id = 'sad'", [f"written {number}"])
"""


def test_two_viewers_read_while_another_process_writes_and_ctrl_c_ends_one(viewer: Viewer) -> None:
    environment = {"ASSAYLINE_DATA_DIR": str(viewer.settings.data_dir), "PATH": ""}
    command = [sys.executable, "-m", "assayline", "view", "--no-browser"]
    process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        with httpx.Client(timeout=120, follow_redirects=True) as other:
            assert other.get(line.removeprefix("Viewer: ").strip()).status_code == 200
            url = line.split()[1].partition("/?")[0]
            assert find_viewer(viewer.settings.data_dir, "a b") == f"{url}/run?run=a+b"
            writer = subprocess.Popen([sys.executable, "-c", WRITER, str(viewer.settings.database_path)], cwd=ROOT)
            while writer.poll() is None:
                for client, base in ((other, url), (viewer.client, viewer.url)):
                    assert client.get(f"{base}/answers?run={NIGHT}").status_code == 200
            assert writer.returncode == 0
            assert "written 4" in other.get(f"{url}/run?run=sad").text
        process.send_signal(signal.SIGINT)
        assert wait_for(lambda: process.poll() is not None) and process.returncode == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.communicate()
    assert find_viewer(viewer.settings.data_dir, "a b") is None
    assert not Path(viewer.settings.data_dir, "assayline.duckdb.wal").exists()
