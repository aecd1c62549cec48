"""The scorer loglikelihood: the likeliest option against the target's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assayline.scorers.likelihood import find_option, score_loglikelihood


def score(options, logprobs, tokens, target, normalize="none"):
    row = {"options": options, "option_logprobs": logprobs, "option_tokens": tokens}
    return score_loglikelihood(None, target, row, normalize)


@pytest.mark.parametrize(("normalize", "extracted"), [("none", "no"), ("bytes", "certainly"), ("tokens", "não")])
def test_the_likeliest_option(normalize, extracted):
    options, logprobs, tokens = ["no", " certainly", "não"], [-2.0, -6.0, -3.5], [1, 2, 3]
    found = score(options, logprobs, tokens, extracted, normalize)
    assert (found.value, found.extracted.strip()) == (1.0, extracted)
    assert score(options, logprobs, tokens, "yes", normalize).value == 0.0


def test_loglikelihood_says_why():
    two = (["yes", "no"], [-1.5, -2.0], [1, 1])
    assert score(*two, "no")[:3] == (0.0, "yes", "yes (-1.5) is likelier than no (-2.0)")
    assert score(["a", "b"], [-1.0, -1.0], [1, 1], "0")[:2] == (1.0, "a"), "the first of equals"
    assert score(["a", ""], [-1.0, -1.0], [1, 0], "b", "bytes").value == 0.0
    assert score(*two, "maybe").reason == "the target is none of the options: maybe"


@pytest.mark.parametrize(
    ("target", "options", "index"),
    [
        ("y", ["x", "y"], 1),
        (" y ", ["x", "y"], 1),
        ("y", [" x", " y"], 1),
        ("1", ["x", "y"], 1),
        ("1", ["2", "1", "0"], 1),  # a text before a place
        ("B", ["x", "y"], 1),
        ("a", ["x", "y"], 0),
        ("C", ["x", "y"], None),
        ("1.5", ["x", "y", "z"], None),
        ("-1", ["x", "y"], None),
    ],
)
def test_the_option_that_a_target_means(target, options, index):
    assert find_option(target, options) == index


@st.composite
def draw_likelihoods(draw):
    count = draw(st.integers(1, 5))
    options = draw(st.lists(st.text(st.characters(codec="utf-8"), max_size=5), min_size=count, max_size=count))
    chances = st.one_of(st.none(), st.floats(max_value=0), st.just(float("nan")))
    logprobs = draw(st.lists(chances, min_size=count, max_size=count))
    target = draw(st.one_of(st.sampled_from(options), st.sampled_from(["0", "B", "zebra"])))
    return options, logprobs, [1] * count, target


@pytest.mark.hypothesis
@given(case=draw_likelihoods(), normalize=st.sampled_from(["none", "bytes", "tokens"]))
def test_scores_of_any_likelihoods_are_0_or_1(case, normalize):
    found = score(*case, normalize)
    assert found.value in (0.0, 1.0) and found.reason
