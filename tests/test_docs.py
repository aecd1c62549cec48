"""The documentation says what is."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import metric_docs  # noqa: E402
import query_docs  # noqa: E402
import spec_docs  # noqa: E402

from assayline.store.database import connect  # noqa: E402
from examples.two_weeks import make_database  # noqa: E402


def test_the_page_of_the_spec_is_the_one_that_its_models_make():
    assert (ROOT / "docs" / "spec.md").read_text(encoding="utf-8") == spec_docs.render(), "run scripts/spec_docs.py"


def test_every_field_of_the_spec_is_explained():
    for _, model in spec_docs.PARTS:
        for name, field in model.model_fields.items():
            assert field.description or name == "kind", f"{model.__name__}.{name} has no description"


@pytest.fixture(scope="module")
def page_of_metrics() -> str:
    return metric_docs.render()


def test_the_page_of_metrics_is_the_one_that_the_comments_make(page_of_metrics):
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert page == page_of_metrics, "run python -m scripts.metric_docs"


def test_every_model_is_on_the_page_of_metrics(page_of_metrics):
    headings = re.findall(r"^### (\w+)$", page_of_metrics, flags=re.MULTILINE)
    files = [file for file in (ROOT / "sql").rglob("*.sql") if file.parent.name != "migrations"]
    assert sorted(headings) == sorted(re.sub(r"^\d+_", "", file.stem) for file in files)


def test_a_number_without_a_unit_is_no_metric():
    with pytest.raises(ValueError, match=r"some_view\.speed is a number without a unit"):
        metric_docs.name_unit("some_view", "speed", "DOUBLE")


@pytest.mark.slow
def test_each_query_of_the_page_gives_the_answer_on_the_page(tmp_path):
    with connect(make_database(tmp_path), 10, read_only=True) as connection:
        page = query_docs.render(connection)
    assert (ROOT / "docs" / "queries.md").read_text(encoding="utf-8") == page, "run python -m scripts.query_docs"
    assert page.count("```sql") == 10
    answers = re.findall(r"^\|[-:|]+\|\n((?:\|.*\n)*)", page, flags=re.MULTILINE)
    assert len(answers) == 10 and all(answers), "each has an answer"


def test_files_that_the_readme_names_exist():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert links
    for link in links:
        assert (ROOT / link).exists(), f"README links {link}"


def test_views_that_the_readme_names_exist():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    models = {re.sub(r"^\d+_", "", path.stem) for path in (ROOT / "sql" / "models").rglob("*.sql")}
    rows = re.findall(r"^\| (`[^|]+) \|", text, flags=re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([a-z_]+)`", row)}
    assert named == models


def test_locks_hold_names_versions_and_hashes_only():
    for lock in sorted((ROOT / "locks").glob("*.txt")):
        first, *lines = lock.read_text().splitlines()
        assert first.startswith("# Written by scripts/lock.py")
        assert lines
        for line in lines:
            assert re.fullmatch(r"[a-z0-9.-]+==[A-Za-z0-9.!+-]+( \\)?|    --hash=sha256:[0-9a-f]{64}( \\)?", line), (
                f"{lock.name}: {line}"
            )
