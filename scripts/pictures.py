"""Retake the documentation's screenshots from real runs of SmolLM2 on this machine, with headless Chromium.

    python -m scripts.pictures [--reuse] [report] [verdict] [sweep] [comparison] [viewer]

Every screenshot shows a page that assayline wrote. Each time, the runs in .cache/pictures are new; `--reuse` takes the
pages of the last time. The screenshots replace docs/pictures/NAME.png. The pages name the model, the run and the
hardware. docs/pictures/history.png is not among them: it needs weeks of runs. Those of the viewer, viewer.png and
labels.png, are of the invented runs of examples/two_weeks.py.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

from benchmarks.real_nights import MODEL, add_noise

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
WORK = ROOT / ".cache" / "pictures"
SPEC = "examples/questions.yaml"
SLOS = "[{name: interactive, ttft_s: 1, tpot_s: 0.2}, {name: patient, e2e_s: 20}]"
SWEEP = [
    *("--profile", "sweep", "--engine.backend", "async", "--points", "6", "--seconds", "20", "--requests", "60"),
    *("--arrival", "poisson", "--slos", SLOS),
]
NOISE = (0.01, 0.03, 0.05)
"""Noise on the weights of copies of the model, whose quality is compared. The documentation's screenshot has a build
with 4-bit weights, too, which this script does not make."""
FRONTIER = [
    *("--repeats", "1", "--gate.max_accuracy_drop", "0.05", "--engine.args.dtype", "bfloat16"),
    *("--sampling.max_tokens", "32"),
    *("--sweep", ",".join([f"model={MODEL}", *(f"{MODEL.parent}/SmolLM2-noise-{100 * share:.0f}" for share in NOISE)])),
]
COMMANDS = {
    "report": [["evaluate", SPEC]],
    "verdict": [
        ["evaluate", SPEC],
        ["baseline", "pin", "stable", "last"],
        ["evaluate", SPEC, "--sampling.max_tokens", "6"],
        ["gate", "last", "--baseline", "stable"],
    ],
    "sweep": [["benchmark", SPEC, *SWEEP]],
    "comparison": [["benchmark", SPEC, *FRONTIER]],
}
"""The commands behind each screenshot, in a data folder of its own. The newest report.html is photographed."""
VIEWER = "viewer"
NAMES = [*COMMANDS, VIEWER]
HEIGHTS = {"report": 2290, "verdict": 2200, "sweep": 2000, "comparison": 1060}
"""Pixels of each screenshot; pages are longer."""
WIDTH = 1100
NIGHTS = ("20261114-013000-nightly-0001", "20261121-013000-nightly-0002")
GATE_FAILED = 1
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def run_commands(name: str, folder: Path) -> None:
    """Run the commands of a screenshot, with their results in `folder`. Exit if one of them fails."""
    shutil.rmtree(folder, ignore_errors=True)
    for share in NOISE if name == "comparison" else ():
        if not (copy := MODEL.with_name(f"SmolLM2-noise-{100 * share:.0f}")).exists():
            add_noise(MODEL, copy, share)
    environment = {"ASSAYLINE_DEVICE_WAIT_S": "600", **os.environ, "ASSAYLINE_DATA_DIR": str(folder)}
    for command in COMMANDS[name]:
        print(f"screenshots: {name}: assayline {' '.join(command)}", flush=True)
        done = subprocess.run([sys.executable, "-m", "assayline", *command], env=environment, cwd=ROOT, check=False)
        if done.returncode not in (0, GATE_FAILED if command[0] == "gate" else 0):
            sys.exit(f"screenshots: {name}: assayline {command[0]} failed with exit code {done.returncode}.")


def find_page(folder: Path) -> Path:
    """Return the newest report of a data folder, a benchmark's before those of its runs."""
    pages = list(folder.glob("benchmarks/*/report.html")) or list(folder.glob("runs/*/report.html"))
    if not pages:
        sys.exit(f"screenshots: no report in {folder}. hint: leave out --reuse.")
    return max(pages, key=lambda page: page.stat().st_mtime)


def photograph(browser: str, page: str, picture: Path, height: int) -> None:
    """Write the upper `height` pixels of a page to a PNG file."""
    command = [
        *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-device-scale-factor=1"),
        *(f"--window-size={WIDTH},{height}", "--virtual-time-budget=15000", f"--screenshot={picture}", page),
    ]
    subprocess.run(command, check=True, capture_output=True)
    print(f"screenshots: {picture.relative_to(ROOT)} from {page}", flush=True)


def photograph_viewer(browser: str, folder: Path, reuse: bool) -> None:
    """Write the screenshots of two invented runs in the viewer: their changed answers, and one of these."""
    if not reuse:
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "examples.two_weeks", str(folder)], cwd=ROOT, check=True)
    command = [sys.executable, "-m", "assayline", "view", "--no-browser", *NIGHTS]
    environment = {**os.environ, "ASSAYLINE_DATA_DIR": str(folder)}
    viewer = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert viewer.stdout is not None
        url = viewer.stdout.readline().split()[1]
        photograph(browser, url, PICTURES / "viewer.png", 760)
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        page = opener.open(url).read().decode()
        (path, *_), (base, _, token) = re.findall(r'href="(/pair[^"]+)"', page), url.partition("/compare")
        pair = f"{base}{path.replace('&amp;', '&')}&{token.rpartition('&')[2]}"
        photograph(browser, pair, PICTURES / "labels.png", 700)
    finally:
        viewer.terminate()
        viewer.wait()


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="scripts/pictures.py", description="Retake screenshots of docs/pictures.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(NAMES)} (default: all)")
    parser.add_argument("--reuse", action="store_true", help="take the pages of the last time, and run nothing")
    options = parser.parse_args(arguments)
    names = options.names or NAMES
    if unknown := {*names} - {*NAMES}:
        parser.error(f"unknown screenshot: {', '.join(sorted(unknown))}; known: {', '.join(NAMES)}")
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit("screenshots: no Chromium on the PATH. hint: on Debian and Ubuntu: `apt install chromium`.")
    for name in names:
        folder = WORK / name
        if name == VIEWER:
            photograph_viewer(browser, folder, options.reuse)
            continue
        if not options.reuse:
            run_commands(name, folder)
        photograph(browser, find_page(folder).as_uri(), PICTURES / f"{name}.png", HEIGHTS[name])


if __name__ == "__main__":
    main(sys.argv[1:])
