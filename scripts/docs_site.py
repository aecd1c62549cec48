"""Build the documentation's site into site/ from mkdocs.yml: `make docs`.

    python scripts/docs_site.py           build, then check every link of the site
    python scripts/docs_site.py --check   only check the site that is there

Zensical is in .cache/docs-env, an environment of its own, with the versions of locks/docs.txt. Pages link files of the
repository outside docs/, as a forge shows them. On the site these files are pages below source/.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

sys.path.insert(0, str(Path(__file__).resolve().parent))
from lock import find_uv
from pip_settings import read_pip_settings, uv_variables

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = ROOT / ".cache" / "docs-env"
STAGE = ROOT / ".cache" / "docs-site"
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(?=[)#])")
LANGUAGES = {".py": "python", ".sql": "sql", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".sh": "bash"}


def main(arguments: list[str]) -> int:
    """Return the exit code: 1 if a link of the site leads nowhere."""
    if arguments not in ([], ["--check"]):
        sys.exit(__doc__)
    if not arguments:
        set_up()
        stage()
        build()
    broken = find_broken_links(ROOT / "site")
    for line in broken:
        print(f"docs: broken link: {line}", file=sys.stderr)
    print(f"docs: site/index.html, {len(list((ROOT / 'site').rglob('*.html')))} pages, {len(broken)} broken links")
    return 1 if broken else 0


def set_up() -> None:
    """Install locks/docs.txt into the environment, unless it is there."""
    lock = ROOT / "locks" / "docs.txt"
    stamp, digest = ENVIRONMENT / "lock.sha256", hashlib.sha256(lock.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return
    environ = {**os.environ, **uv_variables(read_pip_settings(Path(sys.executable)), os.environ)}
    uv = [find_uv(), "--quiet"]
    subprocess.run([*uv, "venv", "--clear", "--python", sys.executable, str(ENVIRONMENT)], check=True, env=environ)
    install = [*uv, "pip", "install", "--python", str(ENVIRONMENT / "bin" / "python"), "--no-deps", "--require-hashes"]
    subprocess.run([*install, "-r", str(lock)], check=True, env=environ)
    stamp.write_text(digest)


def stage(root: Path = ROOT, folder: Path = STAGE) -> None:
    """Copy docs/ and mkdocs.yml into a folder, with a page for every file outside docs/ that a page links."""
    shutil.rmtree(folder, ignore_errors=True)
    docs = root / "docs"
    shutil.copytree(docs, folder / "docs")
    shutil.copy(root / "mkdocs.yml", folder)
    waiting = [(page, folder / "docs" / page.relative_to(docs)) for page in sorted(docs.rglob("*.md"))]
    seen: set[Path] = set()
    while waiting:
        source, page = waiting.pop()
        if source.is_dir():
            text = _list_folder(source, root)
        elif source.suffix == ".md":
            text = source.read_text(encoding="utf-8")
        else:
            text = _show_file(source, root)
        base = source if source.is_dir() else source.parent

        def place(found: re.Match[str], base: Path = base, page: Path = page) -> str:
            target = (base / found[1]).resolve()
            if "://" in found[1] or not target.exists() or not target.is_relative_to(root):
                return found[1]
            if target.is_relative_to(docs) and target.is_file():
                shown = folder / "docs" / target.relative_to(docs)
            else:
                shown = _place_source(target, root, folder)
                if target not in seen:
                    seen.add(target)
                    waiting.append((target, shown))
            return Path(os.path.relpath(shown, page.parent)).as_posix()

        page.parent.mkdir(parents=True, exist_ok=True)
        front = "" if source.is_relative_to(docs) else "---\nsearch:\n  exclude: true\n---\n\n"
        page.write_text(front + LINK.sub(place, text), encoding="utf-8")


def _place_source(path: Path, root: Path, folder: Path) -> Path:
    """The page of a file or folder. A hidden file's loses its dot, since such files are left out of a site."""
    place = folder / "docs" / "source" / "/".join(part.lstrip(".") for part in path.relative_to(root).parts)
    if path.is_dir():
        return place / "index.md"
    return place.with_name(f"{place.stem}.md" if path.suffix == ".md" else f"{place.name}.md")


def _list_folder(folder: Path, root: Path) -> str:
    hidden = ("__pycache__", ".")
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith(hidden))
    return f"# {folder.relative_to(root)}/\n\n" + "".join(f"- [{name}]({name})\n" for name in names)


def _show_file(file: Path, root: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        text = f"{file.stat().st_size} bytes"
    return f"# {file.relative_to(root)}\n\n``````{LANGUAGES.get(file.suffix, 'text')}\n{text.rstrip()}\n``````\n"


def build() -> None:
    """Run Zensical and put its site in place."""
    subprocess.run([str(ENVIRONMENT / "bin" / "zensical"), "build", "--clean"], check=True, cwd=STAGE)
    shutil.rmtree(ROOT / "site", ignore_errors=True)
    shutil.move(STAGE / "site", ROOT / "site")


class _Page(HTMLParser):
    """The links and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append(value)
            elif name == "id" and value:
                self.anchors.add(value)


def find_broken_links(site: Path) -> list[str]:
    """A line for each link inside the site that leads to no file or no anchor."""
    pages = {path.resolve(): _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links are for the root of a host
            continue
        for link in page.links:
            place, _, anchor = unquote(link).partition("#")
            if re.match(r"\w+:|//", place):
                continue
            target = (path.parent / place.partition("?")[0]).resolve() if place else path
            is_known = target.exists() and (not anchor or target not in pages or anchor in pages[target].anchors)
            if not is_known and anchor != "__skip":
                broken.append(f"{path.relative_to(site.resolve())}: {link}")
    return broken


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
