"""The documentation says what is."""

import re
import sys
from pathlib import Path

import duckdb
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import metric_docs  # noqa: E402
import query_docs  # noqa: E402
import spec_docs  # noqa: E402
import tutorial_docs  # noqa: E402

from assayline.spec.file import parse_spec  # noqa: E402
from assayline.store.database import list_models  # noqa: E402

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_page_of_the_spec_is_the_one_that_its_models_make():
    assert (ROOT / "docs" / "reference" / "spec.md").read_text(encoding="utf-8") == spec_docs.render(), (
        "run scripts/spec_docs.py"
    )


def test_every_field_of_the_spec_is_explained():
    for _, model in spec_docs.PARTS:
        for name, field in model.model_fields.items():
            assert field.description or name == "kind", f"{model.__name__}.{name} has no description"


@pytest.fixture(scope="module")
def pages_of_metrics() -> dict[str, str]:
    return metric_docs.render()


def test_metric_docs_are_current(pages_of_metrics):
    folder = ROOT / "docs" / "reference" / "metrics"
    pages = {page.name: page.read_text(encoding="utf-8") for page in folder.iterdir()}
    assert pages == pages_of_metrics, "run python -m scripts.metric_docs"


def test_dbt_sources_are_those_that_the_comments_make():
    text = (ROOT / "docs" / "reference" / "dbt" / "sources.yml").read_text(encoding="utf-8")
    assert text == metric_docs.render_dbt_sources(), "run python -m scripts.metric_docs"
    (source,) = yaml.safe_load(text)["sources"]
    assert (source["schema"], len(source["tables"])) == ("main", 18)
    for table in source["tables"]:
        assert table["description"] and table["columns"]
        assert all(column["description"] and column["data_type"] for column in table["columns"]), table["name"]


def test_metric_docs_have_every_model_once_and_in_the_index(pages_of_metrics):
    pages = {name: text for name, text in pages_of_metrics.items() if name != "index.md"}
    places = [
        (heading, f"{name}#{heading}")
        for name, text in pages.items()
        for heading in re.findall(r"^## (\w+)$", text, flags=re.MULTILINE)
    ]
    files = [file for file in (ROOT / "sql").rglob("*.sql") if file.parent.name != "migrations"]
    assert sorted(name for name, _ in places) == sorted(re.sub(r"^\d+_", "", file.stem) for file in files)
    index = re.findall(r"^\| \[(\S+)\]\((\S+)\)", pages_of_metrics["index.md"], flags=re.MULTILINE)
    assert [(name.replace("\\", ""), link) for name, link in index] == places


def test_metric_docs_reject_a_number_without_a_unit():
    with pytest.raises(ValueError, match=r"some_view\.speed is a number without a unit"):
        metric_docs.name_unit("some_view", "speed", "DOUBLE")


@pytest.mark.slow
def test_query_docs_gives_the_answers_on_the_page(weeks):
    with duckdb.connect(weeks.database_path, read_only=True) as connection:
        page = query_docs.render(connection)
    assert (ROOT / "docs" / "reference" / "sql-cookbook.md").read_text(encoding="utf-8") == page, (
        "run python -m scripts.query_docs"
    )
    assert page.count("```sql") == 15
    answers = re.findall(r"^\|[-:|]+\|\n((?:\|.*\n)*)", page, flags=re.MULTILINE)
    assert len(answers) == 15 and all(answers), "each has an answer"


@pytest.mark.slow
def test_the_tutorial_has_what_its_commands_print(weeks):
    page = tutorial_docs.render(weeks.data_dir)
    assert page == tutorial_docs.PAGE.read_text(encoding="utf-8"), "run python -m scripts.tutorial_docs"
    assert len(tutorial_docs.BLOCK.findall(page)) == 4 and "\n$ echo $?\n1\n" in page


@pytest.mark.parametrize("question", query_docs.QUESTIONS, ids=lambda question: question.title)
def test_query_docs_are_short_and_name_only_what_is_in_main(question):
    assert question.title.endswith("?")
    assert len(question.query.strip().splitlines()) <= 10
    named = set(re.findall(r"\b(?:from|join)\s+([\w.]+)", question.query))
    public = {model.name for model in list_models().values() if model.full_name.startswith("main.")}
    assert named and named <= public


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_to_files_and_headings(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), f"{page.name} links {link}"
        if anchor:
            assert anchor in list_anchors(target), f"{page.name} links {link}"


def list_anchors(page: Path) -> list[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_queries_of_a_page_name_schemas_as_other_clients_must(page: Path) -> None:
    """Only the schema main is found without its name."""
    text = page.read_text(encoding="utf-8")
    queries = re.findall(r"^```sql\n((?s:.*?))^```|^    ((?:from|select) .*)$", text, flags=re.MULTILINE)
    hidden = {model.name for model in list_models().values() if model.full_name.startswith("internal.")}
    hidden |= {file.stem.split("_", 1)[1] for file in (ROOT / "sql" / "schema").glob("*.sql")}
    for query in ("".join(parts) for parts in queries):
        if "create or replace" not in query:
            assert not hidden & set(re.findall(r"\b(?:from|join) (\w+)\b(?!\.)", query)), query


def test_design_records_are_short_and_listed() -> None:
    folder = ROOT / "docs" / "design"
    index = (folder / "README.md").read_text(encoding="utf-8")
    records = sorted(folder.glob("[0-9]*.md"))
    assert re.findall(r"\]\((\S+)\)", index) == [record.name for record in records]
    for record in records:
        assert len(record.read_text(encoding="utf-8").split()) <= 300, record.name


def test_the_index_lists_every_page() -> None:
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = {str(page.relative_to(ROOT / "docs")) for page in PAGES if page.is_relative_to(ROOT / "docs")}
    listed = set(re.findall(r"^- \[[^]]+\]\(([^)#]+)\):", text, flags=re.MULTILINE))
    folded = re.compile(r"index\.md|design/\d|reference/metrics/(?!index)")
    assert {page for page in pages if not folded.match(page)} == {page for page in listed if page.endswith(".md")}


def test_the_readme_is_short_and_its_first_spec_is_valid() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 1_100 and len(text.split("```console")[0].split()) <= 120
    spec = parse_spec(yaml.safe_load(re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)[0]))
    assert (ROOT / spec.prompts.source.path).is_file() and spec.scorers


def test_the_readme_names_the_tables_and_functions_of_main() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    public = {model.name for model in list_models().values() if model.full_name.startswith("main.")}
    assert len(public) == 21
    assert public <= set(re.findall(r"`([a-z_]+)`", text))


def test_locks_hold_names_versions_and_hashes_only():
    for lock in sorted((ROOT / "locks").glob("*.txt")):
        first, *lines = lock.read_text().splitlines()
        assert first.startswith("# Written by scripts/lock.py")
        assert lines
        for line in lines:
            assert re.fullmatch(r"[a-z0-9.-]+==[A-Za-z0-9.!+-]+( \\)?|    --hash=sha256:[0-9a-f]{64}( \\)?", line), (
                f"{lock.name}: {line}"
            )
