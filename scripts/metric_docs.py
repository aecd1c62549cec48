"""Write the reference of tables and metrics, and the dbt sources, from the comments in sql/.

`python -m scripts.metric_docs`; a test keeps them current.
"""

import itertools
import re
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from assayline.store.database import SQL_FOLDER, Connection, connect, list_models, read_rows  # noqa: E402
from assayline.store.views import name_model  # noqa: E402

MAIN = ("main", "Tables and functions of main")
"""Page and title of the schema main. The other pages are about the folders of the other schemas."""
FOLDERS = {
    "models/05_load": ("load", "Load: measured intervals"),
    "models/10_staging": ("staging", "Staging: requests, gaps and samples"),
    "models/20_metrics": ("runs", "Scores, errors and integrity of a run"),
    "models/30_comparison": ("comparison", "Comparison of runs"),
    "models/30_report": ("report", "Charts and reports"),
    "models/35_judging": ("judging", "Audit of judges"),
    "models/40_tables": ("tables", "Internals of the tables"),
    "metrics": ("run-metrics", "Statements that measure a run"),
    "queries": ("queries", "Queries of a report"),
    "macros": ("macros", "Intervals and keys"),
    "schema": ("raw", "Raw tables"),
}
"""Folder of sql/: page in docs/reference/metrics/ and its title."""
UNITS = [
    (r"scores?\.value", "score, 0 to 1"),
    (r"metric_values?\.n", "see `metric`"),
    (r"judge_audits?\.(value|standard_error|low|high|n)", "see `measure`"),
    (r"(find_)?judgements?\.(label_)?value", "verdict, 0 to 1"),
    (r"(\w+_)?(kappa|bias)(_error|_low|_high)?|(nominal|interval)_alpha", "−1 to 1"),
    (r"(agreement|sensitivity|specificity|\w+_share)(_error|_low|_high)?", "share"),
    (r"rankings?\.(value|low|high)", "see `kind`"),
    (r"acceptance_length", "tokens/step"),
    (r"draft_acceptance", "share"),
    (r"(run_metric|metric_values?)\.(value|low|high)", "see `unit`"),
    (r"verdict_prompt\.chance", "probability"),
    (r"compare_configs\.\w+_(median|lowest|highest)", "see `unit`"),
    (r"history\.(value|low|high)|verdicts?\.\w+_value", "see `unit`"),
    (r"comparisons?\.(value|baseline_value|difference|low|high)", "see `metric`"),
    (r"((compare|pair|show)_\w+|frontier)\.(difference|difference_low|difference_high|low|high)", "score, −1 to 1"),
    (r"frontier\.cost(_low|_high)?", "see `cost_unit`"),
    (r"frontier\.kl_ratio", "ratio"),
    (r"frontier\.(worst_)?recovery(_low|_high)?", "share"),
    (r"(compare|pair|show)_\w+\.(candidate|baseline)_(mean|value)", "score, 0 to 1"),
    (r".*_at_s", "s since the run's start"),
    (r"energy_per_output_token_joules", "J/token"),
    (r"energy_per_request_joules", "J/request"),
    (r"output_tokens_per_joule", "tokens/J"),
    (r".*_joules", "J"),
    (r".*_watts", "W"),
    (r".*_bytes", "bytes"),
    (r".*_mhz", "MHz"),
    (r".*temperature_c", "°C"),
    (r"cost_per_\w+|full_cost_per_\w+", "currency (see the name)"),
    (r"(.*_)?cost", "currency"),
    (r"right_answers", "answers"),
    (r"saturation\.in_flight_growth_per_s", "requests/s"),
    (r"load_point\.power", "requests/s²"),
    (r".*tokens_per_(attempted_)?s", "tokens/s"),
    (r".*requests_per_(attempted_)?s", "requests/s"),
    (r".*_per_step", "tokens/step"),
    (r"(.*_)?(low|high|value)_s|.*_s|second", "s"),
    (r".*_share|.*_rate|accuracy(_\w+)?|gpu_memory_utilization|relative_shift", "share"),
    (
        r"(.*_)?(mean|mean_without_errors|standard_error|mean_low|mean_high|mean_value|wilson_\w+)|(candidate|baseline)_mean",
        "score, 0 to 1",
    ),
    (r"(.*_)?(index|row|occurrence|ordinal|generation|attempt|version|exit_code|position|rank)|k", "number"),
    (r"ratio(_low|_high)?", "ratio"),
    (r"max_model_len", "tokens"),
    (r"max_num_seqs", "sequences"),
    (r"mean_in_flight_requests", "requests"),
    (
        r"(.*_)?(tokens|steps|requests|prompts|clusters|samples|pairs|rows|events|parts|repeats|scores|engines|attempts)",
        None,
    ),
    (r"(floor_)?kl(_low|_high)?|nll_change|logprob_changes", "nats"),
    (r"first_other", "number"),
    (r".*logprobs?", "natural logarithm"),
    (r"percentile|confidence|correlation|p_value|adjusted_p|holm_p", "0 to 1"),
    (r"burstiness", "shape of the distribution"),
    (r"median_error_factor", "ratio"),
    (r"score_sum", "scores"),
    (r"rank_correlation", "−1 to 1"),
]
"""Units by column name; None: the last word of the name is the unit."""
TYPES = {"VARCHAR": "text", "BOOLEAN": "true or false", "TIMESTAMP": "UTC"}
EXAMPLES = {
    **dict.fromkeys(("candidate", "baseline", "history", "spec"), "''"),
    **dict.fromkeys(("run_ids", "names"), "['']"),
}
"""Arguments for table macros whose parameters have no defaults."""
COLUMN_LINE = re.compile(r"^-- (\w+): (.*(?:\n--     .*)*)", re.MULTILINE)


class Column(NamedTuple):
    """A column of the page."""

    name: str
    unit: str
    meaning: str


def main() -> None:
    folder = ROOT / "docs" / "reference" / "metrics"
    folder.mkdir(exist_ok=True)
    pages = render()
    for page in folder.glob("*.md"):
        if page.name not in pages:
            page.unlink()
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8")
    (ROOT / "docs" / "reference" / "dbt" / "sources.yml").write_text(render_dbt_sources(), encoding="utf-8")


def render() -> dict[str, str]:
    """Every page by its file name: index.md, main.md and one per folder of sql/."""
    public = [file for path in FOLDERS for file in _list_files(path) if _is_public(file)]
    sections = {
        MAIN: sorted(public, key=lambda file: (_find_kind(file.read_text("utf-8")) == "macro", name_model(file)))
    }
    sections |= {place: [file for file in _list_files(path) if not _is_public(file)] for path, place in FOLDERS.items()}
    sections = {place: files for place, files in sections.items() if files}
    with tempfile.TemporaryDirectory() as folder, connect(Path(folder) / "empty.duckdb", 5) as connection:
        pages = {
            f"{name}.md": "\n".join(
                [
                    f"# {title}",
                    "",
                    f"Generated by `python -m scripts.metric_docs` from the comments in {_link_folder(files)}.",
                    "The [index](index.md) lists every table and function.",
                    "",
                    *(line for file in files for line in _describe(connection, file)),
                ]
            )
            for (name, title), files in sections.items()
        }
        index = _render_index(connection, sections)
    return {name: text.rstrip() + "\n" for name, text in {"index.md": index, **pages}.items()}


def _render_index(connection: Connection, sections: dict[tuple[str, str], list[Path]]) -> str:
    lines = [
        "# Metrics, tables and functions",
        "",
        "Generated by `python -m scripts.metric_docs` from the comments in [sql/](../../../sql). The database has the",
        "same comments: `select column_name, comment from duckdb_columns() where table_name = 'run'`.",
        "",
        "Write queries and dashboards for the tables and functions in the schema `main`: their names and columns are",
        "stable. `internal` and `raw`, from which they are computed, may change with any version.",
        "",
        "- NULL means undefined or not measured, never 0.",
        "- Times named `_at_s` are seconds since the run's start. Durations are differences of timestamps of one",
        "  monotonic clock.",
        "- A definition begins with what the number is, followed by its formula if it has one.",
        "",
    ]
    for (name, title), files in sections.items():
        lines += [f"## {title}", "", "| name | description |", "|---|---|"]
        for file in files:
            model = name_model(file)
            kind = _find_kind(file.read_text("utf-8"))
            comment = _read_head(file) if kind == "statement" else _read_comment(connection, model, kind)
            lines.append(f"| [{_cell(model)}]({name}.md#{model}) | {_take_sentence(comment)} |")
        lines.append("")
    return "\n".join(lines)


def _take_sentence(comment: str) -> str:
    """The first sentence of a comment."""
    return re.split(r"(?<=[\w)\]]\.)\s+", comment, maxsplit=1)[0]


def _link_folder(files: list[Path]) -> str:
    folders = {file.parent for file in files}
    shared = folders.pop() if len(folders) == 1 else SQL_FOLDER / "models"
    name = f"sql/{shared.relative_to(SQL_FOLDER).as_posix()}"
    return f"[{name}](../../../{name})"


def render_dbt_sources() -> str:
    """Format the tables of `main` as a dbt source, with types and descriptions."""
    names = [model.name for model in list_models().values() if model.is_view and model.full_name.startswith("main.")]
    with tempfile.TemporaryDirectory() as folder, connect(Path(folder) / "empty.duckdb", 5) as connection:
        tables = [
            {
                "name": name,
                "description": connection.execute(
                    "select comment from duckdb_views() where schema_name = 'main' and view_name = ?", [name]
                ).fetchall()[0][0],
                "columns": read_rows(
                    connection,
                    "select column_name as name, lower(data_type) as data_type, comment as description "
                    "from duckdb_columns() where schema_name = 'main' and table_name = ? order by column_index",
                    name,
                ),
            }
            for name in sorted(names)
        ]
    description = "The tables of assayline: runs, requests, answers and metrics of evaluations of language models."
    source = {"name": "assayline", "description": description, "database": "assayline", "schema": "main"}
    head = "# Written by `python -m scripts.metric_docs` from the comments in sql/. See docs/guides/exports.md.\n"
    text = yaml.safe_dump(
        {"version": 2, "sources": [{**source, "tables": tables}]}, sort_keys=False, allow_unicode=True, width=100
    )
    return head + text


def _list_files(folder: str) -> list[Path]:
    return sorted((SQL_FOLDER / folder).glob("*.sql"))


def _is_public(file: Path) -> bool:
    return (
        "create or replace view main." in (text := file.read_text("utf-8")) or "create or replace macro main." in text
    )


def _find_kind(text: str) -> str:
    made = re.search(r"^create (?:or replace )?(view|macro|table)", text, re.MULTILINE)
    return made[1] if made else "table" if "create " in text else "statement"


def _read_head(file: Path) -> str:
    """Return the comment that a statement begins with."""
    lines = itertools.takewhile(lambda line: line.startswith("--"), file.read_text("utf-8").splitlines())
    return _cell(" ".join(line.removeprefix("--").strip() for line in lines))


def _describe_statement(file: Path) -> list[str]:
    """Describe a statement by its first comment, with the names of its metrics."""
    place = file.relative_to(SQL_FOLDER).as_posix()
    found = dict.fromkeys(re.findall(r"^    \('(\w+)', '([\w.]+)',", file.read_text("utf-8"), re.M))
    names = ", ".join(f"`{metric}` ({statistic})" for metric, statistic in found)
    return [
        f"## {name_model(file)}", "", _read_head(file), "", f"[sql/{place}](../../../sql/{place})", "",
        *([f"Metrics: {names}.", ""] if names else []),
    ]  # fmt: skip


def _describe(connection: Connection, file: Path) -> list[str]:
    name = name_model(file)
    text = file.read_text(encoding="utf-8")
    if (kind := _find_kind(text)) == "statement":
        return _describe_statement(file)
    grain = re.match(r"-- Grain: (.*)", text)
    columns = _read_macro_columns(connection, name, text) if kind == "macro" else read_columns(connection, name)
    lines = [f"## {name}", "", _read_comment(connection, name, kind)]
    if grain and kind != "macro":
        lines += ["", f"Grain: {grain[1]}"]
    lines += [
        "",
        f"[sql/{file.relative_to(SQL_FOLDER).as_posix()}](../../../sql/{file.relative_to(SQL_FOLDER).as_posix()})",
        "",
    ]
    if columns:
        lines += ["| column | unit | definition |", "|---|---|---|"]
        lines += [f"| `{column.name}` | {column.unit} | {_cell(column.meaning)} |" for column in columns]
        lines.append("")
    return lines


def read_columns(connection: Connection, name: str) -> list[Column]:
    """Return the columns of a raw table or a view of main, in order; none of internal views, whose columns change."""
    rows = connection.execute(
        "select column_name, data_type, comment from duckdb_columns() where table_name = ? and not internal "
        "and schema_name <> 'internal' order by column_index",
        [name],
    ).fetchall()
    return [Column(column, name_unit(name, column, data_type), comment) for column, data_type, comment in rows]


def name_unit(table: str, column: str, data_type: str) -> str:
    """Return the unit of a column. Raises ValueError for a number without a known unit."""
    if data_type.endswith("[]"):
        return "list"
    if data_type in TYPES:
        return TYPES[data_type]
    for pattern, unit in UNITS:
        if re.fullmatch(pattern, column) or re.fullmatch(pattern, f"{table}.{column}"):
            return unit or column.rpartition("_")[2]
    if data_type == "DOUBLE":
        raise ValueError(f"{table}.{column} is a number without a unit: add it to UNITS of scripts/metric_docs.py")
    return "count"


def _read_macro_columns(connection: Connection, name: str, text: str) -> list[Column]:
    """Read a macro's column comments from the head of its file, as DuckDB does not store them."""
    head = text.partition("create or replace")[0]
    if " as table" not in text:
        return []
    types = dict(describe_macro(connection, name))
    found = COLUMN_LINE.findall(head)
    return [
        Column(column, name_unit(name, column, types[column]), re.sub(r"\n--\s+", " ", meaning))
        for column, meaning in found
        if column in types
    ]


def describe_macro(connection: Connection, name: str) -> list[tuple[str, str]]:
    """Return (column, type) of a macro, by calling it for runs that do not exist."""
    ((parameters,),) = connection.execute(
        "select distinct parameters from duckdb_functions() where function_name = ? and not internal", [name]
    ).fetchall()
    values = ", ".join(EXAMPLES[parameter] for parameter in parameters if parameter in EXAMPLES)
    return [(column, kind) for column, kind, *_ in connection.execute(f"describe from {name}({values})").fetchall()]


def _read_comment(connection: Connection, name: str, kind: str) -> str:
    query = {
        "view": "select comment from duckdb_views() where view_name = ? and not internal",
        "table": "select comment from duckdb_tables() where table_name = ?",
        "macro": "select distinct comment from duckdb_functions() where function_name = ? and not internal",
    }[kind]
    return _cell(str(connection.execute(query, [name]).fetchall()[0][0]))


def _cell(text: str) -> str:
    """Escape text for a Markdown table: no column separators, tags or emphasis."""
    return re.sub(r"([|<>*_\[\]])", r"\\\1", " ".join(text.split()))


if __name__ == "__main__":
    main()
