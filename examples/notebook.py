"""Notebook with three charts of a database: accuracy over time, throughput and latency, cost per right answer.

    pip install marimo altair
    python -m examples.two_weeks                                                # the database that it shows by default
    marimo edit examples/notebook.py
    marimo edit examples/notebook.py -- --database data/assayline.duckdb        # or set ASSAYLINE_DATABASE
    marimo export html examples/notebook.py -o notebook.html

Each chart queries the tables in the schema main. The notebook opens the database briefly for each chart, so it does not
block a run that writes to it.
"""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium")

with app.setup:
    import os
    from pathlib import Path

    import altair as alt
    import duckdb
    import marimo as mo

    EXAMPLE = Path(__file__).resolve().parents[1] / "data" / "two-weeks" / "assayline.duckdb"


@app.function
def read_table(database, query):
    """Return the rows of a query as an Arrow table."""
    with duckdb.connect(database, read_only=True) as connection:
        return connection.sql(query).to_arrow_table()


@app.function
def plot_accuracy(database):
    """Plot the accuracy of each run with its 95% CI over time, without runs of benchmarks."""
    runs = read_table(
        database,
        """
        select name, model, started_at, accuracy, accuracy_low, accuracy_high
        from run
        where accuracy is not null and benchmark_id is null
        order by started_at
        """,
    )
    base = alt.Chart(runs).encode(x=alt.X("started_at:T", title=None), color=alt.Color("name:N", title="spec"))
    accuracy = alt.Y("accuracy:Q", title="accuracy", scale=alt.Scale(zero=False), axis=alt.Axis(format="%"))
    points = base.mark_point(filled=True, size=60).encode(
        y=accuracy, tooltip=["name", "model", "started_at", "accuracy"]
    )
    intervals = base.mark_rule().encode(y=alt.Y("accuracy_low:Q"), y2="accuracy_high:Q")
    lines = base.mark_line(opacity=0.4).encode(y=accuracy)
    return (intervals + lines + points).properties(title="Accuracy with 95% CI", width=600)


@app.function
def plot_throughput(database):
    """Plot throughput and latency: a point per run, a colour per benchmark or spec."""
    runs = read_table(
        database,
        """
        select coalesce(benchmark_id, name) as runs, run_id, model, output_tokens_per_s, e2e_p50_s, e2e_p95_s
        from run
        where output_tokens_per_s is not null and e2e_p50_s is not null
        order by output_tokens_per_s
        """,
    )
    return (
        alt.Chart(runs)
        .mark_point(filled=True, size=60)
        .encode(
            x=alt.X("output_tokens_per_s:Q", title="throughput (output tokens/s)"),
            y=alt.Y("e2e_p50_s:Q", title="median end-to-end latency (s)"),
            color=alt.Color("runs:N", title="benchmark or spec"),
            tooltip=["run_id", "model", "output_tokens_per_s", "e2e_p50_s", "e2e_p95_s"],
        )
        .properties(title="Throughput and latency", width=600)
    )


@app.function
def plot_cost(database):
    """Plot the cost of 1,000 right answers by model and benchmark or spec: the median run and the widest 95% CI."""
    costs = read_table(
        database,
        """
        select model, coalesce(benchmark_id, name) || ', ' || split_part(unit, '/', 1) as runs,
            1000 * median(value) as cost, 1000 * min(low) as cost_low, 1000 * max(high) as cost_high
        from metric_value
        where metric = 'cost_per_right_answer' and value is not null
        group by all
        order by cost
        """,
    )
    base = alt.Chart(costs).encode(
        y=alt.Y("model:N", sort=None, title=None), color=alt.Color("runs:N", title="benchmark or spec, currency")
    )
    points = base.mark_point(filled=True, size=60).encode(
        x=alt.X("cost:Q", title="cost of 1,000 right answers"), tooltip=["model", "runs", "cost"]
    )
    intervals = base.mark_rule().encode(x=alt.X("cost_low:Q"), x2="cost_high:Q")
    return (intervals + points).properties(title="Cost per right answer", width=600)


@app.cell
def find_database():
    database = mo.cli_args().get("database") or os.environ.get("ASSAYLINE_DATABASE") or str(EXAMPLE)
    if not Path(database).exists():
        raise FileNotFoundError(f"No database at {database}. hint: create one with `python -m examples.two_weeks`.")
    return (database,)


@app.cell
def show_accuracy(database):
    plot_accuracy(database)
    return


@app.cell
def show_throughput(database):
    plot_throughput(database)
    return


@app.cell
def show_cost(database):
    plot_cost(database)
    return


if __name__ == "__main__":
    app.run()
