"""The headline of a run, as its flow's state has it."""

from assayline.flows.live.reporting import describe_figures


def figure(source: str, value: float | None, n: int | None = None) -> dict[str, object]:
    return {"source": source, "value": value, "n": n}


def test_describe_figures_counts_errors_and_leaves_out_what_was_not_measured():
    accuracy, tokens = figure("accuracy mean", 0.981), figure("output_tokens_per_s mean", 2786.4)
    told = "98.1% correct, 2,786\u00a0tokens/s, 2 of 155 requests failed"
    assert describe_figures([accuracy, tokens, figure("error_requests total", 2, 155)]) == told
    assert describe_figures([figure("accuracy mean", None), tokens]) == "2,786\u00a0tokens/s"
    assert describe_figures([figure("accuracy mean", None)]) == ""
