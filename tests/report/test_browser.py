"""The page in a real browser: its charts are drawn, no request leaves, and hostile text runs nothing.

Every request of the browser goes to a proxy of the test, which answers none and remembers all. The browser asks its
maker's services for the time and the like whatever page it shows; a test sees to it that the page names none of them.
"""

import contextlib
import html
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from history_kit import NAME, NightOf, given_nights, noisy_nights
from report_kit import NIGHT, NIGHT_BEFORE, Sad
from sweep_kit import BENCHMARK, given_sweep

from assayline.report.make import make_benchmark_report, make_history_report, make_leaderboard, make_report
from assayline.settings import Settings

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="no chromium here to open the page with")]

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
                with connection:
                    connection.settimeout(2)
                    with contextlib.suppress(OSError):
                        self.asked.append(connection.recv(4096).partition(b"\r\n")[0].decode("latin-1"))
                        connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    @property
    def asked_by_page(self) -> list[str]:
        """Without what the browser asks for by itself."""
        return [line for line in self.asked if line and not OWN.match(line)]

    def close(self) -> None:
        """Hears no more."""
        self._socket.close()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    made = Proxy()
    yield made
    made.close()


def open_page(page: Path, proxy: Proxy, folder: Path, width: int = 1200) -> str:
    """The page's document after its scripts have run."""
    assert BROWSER is not None
    process = subprocess.Popen(
        [
            BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-extensions",
            "--disable-default-apps",
            f"--proxy-server=http://127.0.0.1:{proxy.port}",
            f"--user-data-dir={folder / 'profile'}",
            f"--window-size={width},900",
            "--virtual-time-budget=8000",
            "--dump-dom",
            page.as_uri(),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        return process.communicate(timeout=120)[0]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=10)


def test_a_page_that_asks_for_something_is_heard(proxy: Proxy, tmp_path: Path) -> None:
    page = tmp_path / "control.html"
    page.write_text(CONTROL)
    assert "<title>ran</title>" in open_page(page, proxy, tmp_path)
    assert "GET http://leak.invalid/img HTTP/1.1" in proxy.asked_by_page


def test_every_chart_is_drawn_and_nothing_is_asked_for(weeks: Settings, proxy: Proxy, tmp_path: Path) -> None:
    written = make_report(weeks, NIGHT, NIGHT_BEFORE, tmp_path)
    assert not re.search(r"(google|gstatic|googleapis|gvt1)\.com", written.html.read_text(encoding="utf-8"))
    document = open_page(written.html, proxy, tmp_path)
    assert proxy.asked_by_page == []
    plots = re.findall(r'<div class="plot[^>]*>(.*?)</div>', document, flags=re.S)
    assert len(plots) == 6
    for plot in plots:
        assert "<svg" in plot and "mark-rule" in plot
        (drawn,) = re.findall(r'<svg[^>]* width="([\d.]+)"', plot)
        assert 100 < float(drawn) < 1200
    assert not any("cannot be drawn" in plot for plot in plots)


def test_every_chart_of_a_sweep_is_drawn(settings: Settings, proxy: Proxy, tmp_path: Path) -> None:
    given_sweep(settings)
    document = open_page(make_benchmark_report(settings, BENCHMARK, tmp_path).html, proxy, tmp_path)
    assert proxy.asked_by_page == []
    plots = re.findall(r'<div class="plot[^>]*>(.*?)</div>', document, flags=re.S)
    assert len(plots) == 5 and all("<svg" in plot and "mark-line" in plot for plot in plots)
    assert not any("cannot be drawn" in plot for plot in plots)


def test_every_chart_of_a_history_is_drawn(settings: Settings, proxy: Proxy, tmp_path: Path) -> None:
    nights = noisy_nights(16, verdict={"e2e_p95_s": "broken"})
    nights[11:] = noisy_nights(5, seed=2, vllm="0.31.0", driver="571.2")
    given_nights(
        settings,
        [replace(night, request_s=1.4 * night.request_s) if i > 10 else night for i, night in enumerate(nights)],
    )
    document = open_page(make_history_report(settings, NAME, "night-003", tmp_path)[1].html, proxy, tmp_path)
    assert proxy.asked_by_page == []
    plots = re.findall(r'<div class="plot[^>]*>(.*?)</div>', document, flags=re.S)
    assert len(plots) == 5 and all("<svg" in plot and "mark-symbol" in plot and "mark-rule" in plot for plot in plots)
    assert all("mark-rect" in plot and "driver, vLLM" in plot for plot in plots)
    assert not any("cannot be drawn" in plot for plot in plots)


LOOK = """
<script>
const warned = [];
console.warn = console.error = (...words) => warned.push(words.join(" "));
addEventListener("load", () => setTimeout(() => {
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
  document.title = JSON.stringify({ wide, warned, charts: document.querySelectorAll(".plot svg").length });
}, 1500));
</script>
"""


def look_at(page: Path, proxy: Proxy, folder: Path, width: int) -> dict[str, Any]:
    """What on the page has no room, and what its console warns of: by a script, so without the page's own policy."""
    text = page.read_text(encoding="utf-8")
    page.write_text(re.sub(r"<meta http-equiv[^>]*>", lambda _: LOOK, text, count=1), encoding="utf-8")
    document = open_page(page, proxy, folder, width)
    found: dict[str, Any] = json.loads(html.unescape(re.findall(r"<title>(.*?)</title>", document, flags=re.S)[0]))
    return found


@pytest.mark.parametrize("width", [390, 1400])
def test_pages_have_room_for_what_is_on_them_and_warn_of_nothing(
    settings: Settings, proxy: Proxy, tmp_path: Path, width: int
) -> None:
    fast = NightOf(request_s=8.91e-5, days_later=0.01)
    odd = [replace(fast, prompts=letter, temperature=0.1 * i) for i, letter in enumerate("qrstu")]
    given_nights(settings, [fast, *odd, replace(fast, right=20, verdict={"accuracy, exact_match": "broken"})])
    written = make_history_report(settings, NAME, folder=tmp_path)[1]
    assert "123,457\u00a0tokens/s" in written.text, "as fast as a large GPU"
    assert look_at(written.html, proxy, tmp_path, width) == {"wide": [], "warned": [], "charts": 5}
    written = make_report(settings, "night-006", "night-000", tmp_path)
    found = look_at(written.html, proxy, tmp_path, width)
    assert (found["wide"], found["warned"]) == ([], [])


@pytest.mark.parametrize("width", [390, 1400])
def test_pages_of_benchmarks_have_room_for_what_is_on_them_and_warn_of_nothing(
    settings: Settings, proxy: Proxy, tmp_path: Path, width: int
) -> None:
    given_sweep(settings, late_at=8.0)
    runs = [
        NightOf(benchmark_id="b", name=f"n engine.batch_size={i % 2}", temperature=i % 2, request_s=i)
        for i in range(1, 11)
    ]
    given_nights(settings, [*runs, NightOf(model="org/a-model-with-a-long-name"), NightOf(model="b", right=20)])
    for page, charts in (
        (make_benchmark_report(settings, BENCHMARK, tmp_path / "sweep").html, 5),
        (make_benchmark_report(settings, "b", tmp_path / "compared").html, 7),
        (make_leaderboard(settings, folder=tmp_path / "board")[1].html, 1),
    ):
        assert look_at(page, proxy, tmp_path, width) == {"wide": [], "warned": [], "charts": charts}, page


def test_hostile_text_neither_runs_nor_loads(sad: Sad, proxy: Proxy, tmp_path: Path) -> None:
    stamps = {"arrived_at_s": 1.0, "first_token_at_s": 1.5, "last_token_at_s": 2.0, "finished_at_s": 2.0}
    answer = {**stamps, "output_tokens": 3, "text": HOSTILE, "rendered": HOSTILE, "target": "y", "score": 0.0}
    sad.given("run", "failed", answer, {"error_kind": HOSTILE, "error_message": HOSTILE}, message=HOSTILE)
    written = make_report(sad.settings, "run", folder=tmp_path)
    document = open_page(written.html, proxy, tmp_path)
    assert proxy.asked_by_page == []
    assert "<title>name of run · failed</title>" in document
    assert "<svg" in document


def test_the_pages_policy_stops_what_escaping_might_miss(weeks: Settings, proxy: Proxy, tmp_path: Path) -> None:
    page = make_report(weeks, NIGHT, folder=tmp_path).html
    page.write_text(page.read_text(encoding="utf-8").replace("<main", f"{HOSTILE}<main"), encoding="utf-8")
    document = open_page(page, proxy, tmp_path)
    assert "http://leak.invalid/frame" in document  # it is in the page, as elements
    assert proxy.asked_by_page == []
    assert "<title>nightly · completed</title>" in document
