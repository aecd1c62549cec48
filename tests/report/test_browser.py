"""The page in a real browser: its charts are drawn, no request leaves, and hostile text runs nothing.

Every request of the browser goes to a proxy of the test, which answers none and remembers all. The browser asks its
maker's services for the time and the like whatever page it shows; a test sees to it that the page names none of them.
"""

import contextlib
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import flow_kit
import pytest
from row_kit import BENCHMARK, NAME, NIGHT, NIGHT_BEFORE, NightOf, given_nights, given_sweep, noisy_nights, plan_of

from assayline.benchmark.campaign import write_campaign
from assayline.report.make import make_report, open_database
from assayline.store.database import read_rows

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(flow_kit.BROWSER is None, reason="no chromium here to open the page with"),
]

HOSTILE = (
    "<script>document.title='pwned'</script><img src='http://leak.invalid/img' onerror=\"document.title='pwned'\">"
    "<style>@import 'http://leak.invalid/css'</style><iframe src='http://leak.invalid/frame'></iframe>"
)
OWN = re.compile(r"^[A-Z]+ (?:https?://)?[\w.-]*\b(?:google|gstatic|googleapis|gvt1)\.com[:/]")
"""What the browser asks for by itself."""
CONTROL = (
    "<!doctype html><title>control</title><img src='http://leak.invalid/img'><script>document.title='ran'</script>"
)


class Proxy:
    """Hears who is asked for what."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._hear, args=[connection], daemon=True).start()

    def _hear(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(2)
            self.asked.append(connection.recv(4096).partition(b"\r\n")[0].decode("latin-1"))
            connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    @property
    def asked_by_page(self) -> list[str]:
        """Without what the browser asks for by itself."""
        return [line for line in self.asked if line and not OWN.match(line)]

    def close(self) -> None:
        """Hears no more."""
        self._socket.close()


HEAR = "window.warned = []; console.warn = console.error = (...words) => warned.push(words.join(' '));"
"""Keeps what a page's console warns of."""
IS_DRAWN = """
document.readyState === "complete" && [...document.querySelectorAll(".plot")].every(
  (plot) => plot.querySelector("svg") || plot.textContent.includes("Failed to draw"))
"""
SETTLE_S = 0.3
"""Until whatever scripts still ask for has been heard."""


class Browser:
    """One tab for all pages, and what it asked for since a test began."""

    def __init__(self, tab: flow_kit.Page, proxy: Proxy) -> None:
        self._tab = tab
        self.proxy = proxy

    def open(self, page: Path, width: int = 1200) -> str:
        """The page's document after its scripts have run."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self._tab.call("Emulation.setDeviceMetricsOverride", **size)
        self._tab.open(page.as_uri())
        self._tab.wait_for(f"location.href === '{page.as_uri()}' && {IS_DRAWN}")
        time.sleep(SETTLE_S)
        return str(self._tab.ask("document.documentElement.outerHTML"))

    def look_at(self, page: Path, width: int) -> Any:
        """Return elements of the page that overflow, and warnings of its console."""
        self.open(page, width)
        return self._tab.ask(LOOK)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    proxy = Proxy()
    profile = tmp_path_factory.mktemp("browser")
    with contextlib.closing(proxy), flow_kit.opened_browser(profile, f"http://127.0.0.1:{proxy.port}") as tab:
        tab.call("Page.enable")
        tab.call("Page.addScriptToEvaluateOnNewDocument", source=HEAR)
        yield Browser(tab, proxy)


@pytest.fixture
def browser(opened: Browser) -> Browser:
    opened.proxy.asked.clear()
    return opened


def test_a_page_that_asks_for_something_is_heard(browser, tmp_path):
    page = tmp_path / "control.html"
    page.write_text(CONTROL)
    assert "<title>ran</title>" in browser.open(page)
    assert "GET http://leak.invalid/img HTTP/1.1" in browser.proxy.asked_by_page


@pytest.mark.parametrize("is_mailed", [True, False])
def test_every_chart_is_drawn_and_nothing_is_asked_for(is_mailed, weeks, browser, tmp_path):
    written = make_report(weeks, NIGHT, NIGHT_BEFORE, tmp_path if is_mailed else None)
    assert (written.html.stat().st_size > 300_000) == is_mailed
    assert not re.search(r"(google|gstatic|googleapis|gvt1)\.com", written.html.read_text(encoding="utf-8"))
    document = browser.open(written.html)
    assert browser.proxy.asked_by_page == []
    plots = re.findall(r'<div class="plot[^>]*>(.*?)</div>', document, flags=re.S)
    assert len(plots) == 6
    tags = re.findall(r'<div class="plot[^>]*>', document)
    assert all('role="img" aria-label=' in tag and "Vega" not in tag for tag in tags), "described in our words"
    for plot in plots:
        assert "<svg" in plot and "mark-rule" in plot
        (drawn,) = re.findall(r'<svg[^>]* width="([\d.]+)"', plot)
        assert 100 < float(drawn) < 1200
    assert not any("Failed to draw" in plot for plot in plots)

    # The page's policy stops what escaping might miss.
    (weeks.data_dir / "cache" / "other.js").write_text("document.title='pwned'")
    text = written.html.read_text(encoding="utf-8")
    open_page = written.html.with_name("open.html")
    local = "<script src='../../cache/other.js'></script>"
    open_page.write_text(text.replace("<main", f"{HOSTILE}{local}<main"), encoding="utf-8")
    document = browser.open(open_page)
    assert "http://leak.invalid/frame" in document, "it is in the page, as elements"
    assert browser.proxy.asked_by_page == [] and "<title>nightly · " in document


def test_every_chart_of_a_history_is_drawn(settings, browser, tmp_path):
    nights = noisy_nights(16, verdict={"e2e_p95_s": "fail"})
    nights[11:] = noisy_nights(5, seed=2, vllm="0.31.0", driver="571.2")
    given_nights(
        settings,
        [replace(night, request_s=1.4 * night.request_s) if i > 10 else night for i, night in enumerate(nights)],
    )
    document = browser.open(make_report(settings, NAME, "night-003", tmp_path, kind="history").html)
    assert browser.proxy.asked_by_page == []
    plots = re.findall(r'<div class="plot[^>]*>(.*?)</div>', document, flags=re.S)
    assert len(plots) == 5 and all("<svg" in plot and "mark-symbol" in plot and "mark-rule" in plot for plot in plots)
    assert all("mark-rect" in plot and "driver, vLLM" in plot for plot in plots)
    assert not any("Failed to draw" in plot for plot in plots)


LOOK = """
(() => {
  const name = (one) => `${one.className || one.tagName}: ${one.textContent.trim().slice(0, 60)}`;
  const beside = (a, b) => a.right <= b.left + 1 || a.bottom <= b.top + 2;
  const apart = (a, b) => beside(a, b) || beside(b, a);
  const wide = document.documentElement.scrollWidth > innerWidth ? ["the page"] : [];
  for (const one of document.querySelectorAll(".figure, .figure *, .quote")) {
    if (one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).display !== "inline") wide.push(name(one));
    if (one.matches(".figure *")) {
      const box = one.getBoundingClientRect(), tile = one.closest(".figure").getBoundingClientRect();
      if (box.right > tile.right) wide.push(name(one));
    }
  }
  for (const one of document.querySelectorAll("td.name, td.number")) {
    const range = document.createRange();
    range.selectNodeContents(one);
    if (range.getClientRects().length > 1) wide.push(name(one));
  }
  for (const plot of document.querySelectorAll(".plot svg")) {
    const edge = plot.getBoundingClientRect();
    const isSeen = (one) => one.textContent && getComputedStyle(one).opacity !== "0";
    const texts = [...plot.querySelectorAll("text")].filter(isSeen);
    for (const [number, text] of texts.entries()) {
      const box = text.getBoundingClientRect();
      if (box.left < edge.left - 2 || box.right > edge.right + 2) wide.push(`cut: ${text.textContent}`);
      if (/rotate/.test(text.getAttribute("transform"))) continue;
      for (const other of texts.slice(0, number)) {
        if (/rotate/.test(other.getAttribute("transform"))) continue;
        if (!apart(box, other.getBoundingClientRect())) wide.push(`${text.textContent} over ${other.textContent}`);
      }
    }
  }
  return { wide, warned, charts: document.querySelectorAll(".plot svg").length };
})()
"""
WIDTHS = (390, 1400)


def test_pages_have_room_for_what_is_on_them_and_warn_of_nothing(settings, browser, tmp_path):
    fast = NightOf(request_s=8.91e-5, days_later=0.01)
    odd = [replace(fast, prompts=letter, temperature=0.1 * i) for i, letter in enumerate("qrstu")]
    given_nights(settings, [fast, *odd, replace(fast, right=20, verdict={"accuracy, exact_match": "fail"})])
    history = make_report(settings, NAME, folder=tmp_path / "history", kind="history")
    assert "123,457\u00a0tokens/s" in history.text, "as fast as a large GPU"
    written = make_report(settings, "night-006", "night-000", tmp_path / "night")
    for width in WIDTHS:
        assert browser.look_at(history.html, width) == {"wide": [], "warned": [], "charts": 5}, width
        found = browser.look_at(written.html, width)
        assert (found["wide"], found["warned"]) == ([], []), width


def test_pages_of_benchmarks_are_drawn_have_room_for_what_is_on_them_and_warn_of_nothing(settings, browser, tmp_path):
    given_sweep(settings, late_at=8.0)
    runs = [
        NightOf(benchmark_id="b", name=f"n engine.batch_size={i % 2}", temperature=i % 2, request_s=i)
        for i in range(1, 11)
    ]
    given_nights(
        settings, [*runs, NightOf(model="org/a-model-with-a-long-name"), NightOf(model="b", model_id="b", right=20)]
    )
    configs = "select config_id from runs where benchmark_id = 'b' group by all order by min(started_at)"
    ids = [row["config_id"] for row in open_database(settings).run(lambda connection: read_rows(connection, configs))]
    write_campaign(plan_of("b", ids, ["engine.batch_size=1", "engine.batch_size=0"], repeats=5), settings)
    sweep = make_report(settings, BENCHMARK, folder=tmp_path / "sweep", kind="benchmark").html
    document = browser.open(sweep)
    assert browser.proxy.asked_by_page == []
    plots = re.findall(r'<div class="plot[^>]*>(.*?)</div>', document, flags=re.S)
    assert len(plots) == 5 and all("<svg" in plot and "mark-line" in plot for plot in plots)
    for page, charts in (
        (sweep, 5),
        (make_report(settings, "b", folder=tmp_path / "compared", kind="benchmark").html, 8),
        (make_report(settings, (), folder=tmp_path / "board", kind="leaderboard").html, 1),
    ):
        for width in WIDTHS:
            found = browser.look_at(page, width)
            assert found == {"wide": [], "warned": [], "charts": charts}, (page, width)


def test_hostile_text_neither_runs_nor_loads(sad, browser, tmp_path):
    stamps = {"arrived_at_s": 1.0, "first_token_at_s": 1.5, "last_token_at_s": 2.0, "finished_at_s": 2.0}
    answer = {**stamps, "output_tokens": 3, "text": HOSTILE, "rendered": HOSTILE, "target": "y", "score": 0.0}
    sad.given("run", "failed", answer, {"error_kind": HOSTILE, "error_message": HOSTILE}, message=HOSTILE)
    written = make_report(sad.settings, "run", folder=tmp_path)
    document = browser.open(written.html)
    assert browser.proxy.asked_by_page == []
    assert "<title>name of run · failed</title>" in document
    assert "<svg" in document
