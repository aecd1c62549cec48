"""A task's scores with their intervals, a line per model."""

from collections.abc import Sequence

import altair as alt

from assayline.report.board.headline import show_rank
from assayline.report.charts import Spec, finish, inline
from assayline.store.database import Row
from assayline.words import show_share

ROW_HEIGHT = 22
LONGEST_NAME_PIXELS = 220


def draw_scores(cells: Sequence[Row]) -> Spec:
    """`cells` are a task's, the best first, with a mean; what is not compared is pale."""
    points = [
        {
            "model": cell["model"],
            "mean": 100 * cell["mean"],
            "low": None if cell["mean_low"] is None else 100 * cell["mean_low"],
            "high": None if cell["mean_high"] is None else 100 * cell["mean_high"],
            "shown": show_share(cell["mean"]),
            "rank": show_rank(cell),
            "is_compared": cell["obstacle"] is None,
        }
        for cell in cells
    ]
    models = [point["model"] for point in points]

    def draw(rows: list[Row]) -> alt.Chart:
        return alt.Chart(inline(rows)).encode(
            y=alt.Y("model:N", sort=models, title=None, axis=alt.Axis(labelLimit=LONGEST_NAME_PIXELS)),
            x=alt.X("mean:Q", title="score, %", scale=alt.Scale(zero=False, padding=8), axis=alt.Axis(tickCount=6)),
        )

    tips = [
        alt.Tooltip("model:N", title="model"),
        alt.Tooltip("shown:N", title="score"),
        alt.Tooltip("rank:N", title="rank"),
    ]
    layers = []
    if sure := [point for point in points if point["low"] is not None]:
        layers.append(
            draw(sure).mark_rule(style="night-interval").encode(x=alt.X("low:Q", title="score, %"), x2="high:Q")
        )
    for is_compared, style in ((True, "night"), (False, "night-uncounted")):
        if shown := [point for point in points if point["is_compared"] == is_compared]:
            layers.append(draw(shown).mark_point(style=style).encode(tooltip=tips))
    return finish(alt.layer(*layers), ROW_HEIGHT * len(points))
