"""The SQL files: one grain each, said in the first line; every view, table and column described."""

import re

from run_kit import ROOT

from assayline.store.database import SQL_FOLDER
from assayline.store.views import name_model
from scripts.metric_docs import describe_macro

SCHEMA_FILES = sorted((SQL_FOLDER / "schema").glob("*.sql"))
MODEL_FILES = sorted((SQL_FOLDER / "models").rglob("*.sql"))
STATEMENTS = [file for folder in ("metrics", "queries") for file in sorted((SQL_FOLDER / folder).glob("*.sql"))]
SQL_FILES = SCHEMA_FILES + MODEL_FILES + sorted((SQL_FOLDER / "macros").glob("*.sql"))


def list_broken_rules(file):
    text = file.read_text(encoding="utf-8")
    if re.search(r"\bif\s*\(", text):
        yield "a condition is `if(…)`, which DuckDB 2.0 stores as a function that 1.5 does not have, not `case`"
    if file in SCHEMA_FILES + MODEL_FILES and not re.match(r"-- Grain: (one|an?) row", text):
        yield "the first line does not state the grain"
    if file not in MODEL_FILES:
        return
    made = re.findall(r"^create or replace (view \w+\.\w+ as|macro \w+\.\w+)", text, re.M)
    name = name_model(file)
    named = ([f"view internal.{name} as"], [f"macro internal.{name}"])
    if [one.replace("main.", "internal.") for one in made] not in named:
        yield "it does not make the one view or macro that it is named after"
    code = re.sub(r"'[^']*'|--.*", "", text)
    if re.search(r"\b(SELECT|FROM|WHERE|JOIN|WITH|CASE|GROUP|ORDER|AS)\b", code):
        yield "a keyword is in capitals"
    if re.search(r"^(?!comment on ).{121,}$", text, re.M):
        yield "a line has more than 120 characters"


def test_sql_files_keep_the_house_style():
    found = [f"{file.relative_to(SQL_FOLDER)}: {rule}" for file in SQL_FILES for rule in list_broken_rules(file)]
    assert found == []


def test_every_internal_model_has_a_reader():
    """A view, macro or function that no other model, no module and no page for users reads is dead."""
    texts = {file: re.sub(r"--.*|^comment on .*", "", file.read_text("utf-8"), flags=re.M) for file in SQL_FILES}
    texts |= {file: file.read_text("utf-8") for file in STATEMENTS}
    for folder in ("assayline", "flows", "tasks", "docs/guides", "docs/concepts", "docs/tutorial"):
        texts |= {
            file: file.read_text("utf-8") for file in (ROOT / folder).rglob("*.*") if file.suffix in (".py", ".md")
        }
    found = {file: set(re.findall(r"\w+", text)) for file, text in texts.items()}
    unread = [
        name_model(file)
        for file in SQL_FILES
        if file not in SCHEMA_FILES
        and " main." not in texts[file]
        and not name_model(file).startswith("score_")  # called as score_KIND by the kind of scorer
        and not any(name_model(file) in words for other, words in found.items() if other != file)
    ]
    assert unread == []


def test_every_table_view_and_column_has_a_comment(schema):
    bare = schema.execute(
        """
        select table_name as name, comment from duckdb_tables()
        union all select view_name, comment from duckdb_views() where not internal
        union all
        select table_name || '.' || column_name, comment
        from duckdb_columns()
        where not internal and schema_name <> 'internal'
        """
    ).fetchall()
    assert len(bare) > 200
    assert [name for name, comment in bare if not comment or not comment.strip().endswith(".")] == []


def test_every_model_is_in_the_database(schema):
    made = "select view_name from duckdb_views() where not internal"
    views = {name for (name,) in schema.execute(made).fetchall()}
    assert views | list_macros(schema) >= {name_model(file) for file in MODEL_FILES}
    assert views <= {name_model(file) for file in MODEL_FILES}


def list_macros(schema):
    """Names of the table macros that are models; those of numbers are in sql/macros/."""
    found = schema.execute(
        "select function_name from duckdb_functions() where not internal and function_type = 'table_macro'"
    ).fetchall()
    return {name for (name,) in found} & {name_model(file) for file in MODEL_FILES}


def test_every_macro_explains_itself_and_each_of_its_columns(schema):
    """DuckDB keeps no comments on a macro's columns: they are lines at the head of its file."""
    macros = [file for file in MODEL_FILES if name_model(file) in list_macros(schema)]
    assert len(macros) >= 3
    for file in macros:
        name = name_model(file)
        ((comment,),) = schema.execute(
            "select distinct comment from duckdb_functions() where function_name = ?", [name]
        ).fetchall()
        assert comment.startswith(f"{name}(") and comment.endswith("."), name
        head = file.read_text(encoding="utf-8").partition("create or replace")[0]
        if borrowed := re.search(r"^-- The columns are those of (\w+)\.", head, re.M):
            (other,) = (file for file in MODEL_FILES if name_model(file) == borrowed[1])
            if other not in macros:  # a view, whose columns have comments
                columns = "select column_name, data_type from duckdb_columns() where table_name = ?"
                found = schema.execute(f"{columns} order by column_index", [borrowed[1]]).fetchall()
                assert describe_macro(schema, name) == found
                continue
            head = other.read_text(encoding="utf-8").partition("create or replace")[0]
        columns = [column for column, _ in describe_macro(schema, name)]
        assert re.findall(r"^-- ([a-z]\w*): ", head, re.M) == columns, name


def test_whole_numbers_have_types_that_every_driver_has(schema):
    """Sums are HUGEINT, of which JDBC and Parquet make a double."""
    huge = "select table_name, column_name from duckdb_columns() where not internal and data_type like '%HUGEINT'"
    assert schema.execute(huge).fetchall() == []


def test_durations_are_named_in_seconds(schema):
    """A column of type double is a time, a rate, a mean, a share, a cost or an energy, and its name shows which."""
    names = schema.execute(
        "select distinct column_name from duckdb_columns() where not internal and data_type = 'DOUBLE'"
    ).fetchall()
    named = re.compile(
        r"(_s|_square|_per_engine|_share|_rate|_per_step|^mean_\w+|^accuracy\w*|^wilson_\w+|^mean|^standard_error|_value|_joules|_watts|^(\w+_)?cost(_\w+)?)$"
    )
    assert sorted(name for (name,) in names if not named.search(name)) == [
        "burstiness",
        "chance",
        "cumulative_logprob",
        "difference",
        "difference_high",
        "difference_low",
        "effective_samples",
        "first_logprob",
        "gpu_memory_utilization",
        "high",
        "kl",
        "kl_high",
        "kl_low",
        "kl_ratio",
        "logprob",
        "low",
        "option_logprob",
        "power",
        "recovery",
        "recovery_high",
        "recovery_low",
        "score_sum",
        "value",
        "worst_recovery",
    ]
