"""The site of the documentation: its navigation, the pages of files outside docs/, and its check of links."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import docs_site  # noqa: E402


def _list_pages(nav: list[Any]) -> Iterator[str]:
    for entry in nav:
        if isinstance(entry, str):
            yield entry
        else:
            for part in entry.values():
                yield from [part] if isinstance(part, str) else _list_pages(part)


def test_nav_has_every_page_of_docs_once() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    docs = ROOT / "docs"
    assert sorted(_list_pages(nav)) == sorted(path.relative_to(docs).as_posix() for path in docs.rglob("*.md"))


def test_site_is_ignored_by_git() -> None:
    assert subprocess.run(["git", "check-ignore", "--quiet", "site/index.html"], cwd=ROOT, check=False).returncode == 0


def test_stage_makes_pages_of_files_and_folders_outside_docs(tmp_path: Path) -> None:
    root = tmp_path / "project"
    (root / "docs" / "guides").mkdir(parents=True)
    (root / "sql").mkdir()
    (root / "mkdocs.yml").write_text("site_name: project\n")
    (root / "README.md").write_text("[guide](docs/guides/a.md)\n")
    (root / "sql" / "q.sql").write_text("select 1;\n")
    (root / ".env.example").write_text("A=1\n")
    (root / "docs" / "guides" / "a.md").write_text(
        "[r](../../README.md#top) [q](../../sql/q.sql) [f](../../sql) [e](../../.env.example) [w](https://example.com)\n"
    )
    docs_site.stage(root, tmp_path / "stage")
    staged = tmp_path / "stage" / "docs"
    assert (staged / "guides" / "a.md").read_text() == (
        "[r](../source/README.md#top) [q](../source/sql/q.sql.md) [f](../source/sql/index.md) "
        "[e](../source/env.example.md) [w](https://example.com)\n"
    )
    assert "[guide](../guides/a.md)" in (staged / "source" / "README.md").read_text()
    assert "``````sql\nselect 1;\n``````" in (staged / "source" / "sql" / "q.sql.md").read_text()
    assert "[q.sql](q.sql.md)" in (staged / "source" / "sql" / "index.md").read_text()
    assert "A=1" in (staged / "source" / "env.example.md").read_text()


def test_find_broken_links_reports_missing_files_and_anchors(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="b.html#there">1</a> <a href="b.html#gone">2</a> <a href="c.html">3</a> <a href="https://x.org/y">4</a>'
    )
    (tmp_path / "b.html").write_text('<h2 id="there">There</h2>')
    assert docs_site.find_broken_links(tmp_path) == ["a.html: b.html#gone", "a.html: c.html"]
