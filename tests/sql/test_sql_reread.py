"""The metrics of a reading, against NumPy over whole vocabularies."""

import json

import numpy as np
import pytest

from assayline.comparison.autopsy import read_autopsies, say_autopsies, say_autopsy
from assayline.report.document import Paragraph, Sample
from assayline.report.run.comparison import describe_comparison, read_comparison
from assayline.run.tokens import read_tokens
from assayline.store.measure import read_reading

VOCABULARY = 2_000
TOKENS = 40


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def make_engines(noise, seed=1, spread=4.0):
    """Log-probabilities of two engines at some places: a peaked distribution, and the same with noise on its logits."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, spread, (TOKENS, VOCABULARY))
    others = logits + generator.normal(0, noise, logits.shape)
    return log_softmax(logits.astype(np.float32)), log_softmax(others.astype(np.float32)), generator


def give_reading(store, run_id, logprobs, ids, request_id="0"):
    """Store the tokens that a run reads from the 20 likeliest of each place, and the answer's own."""
    places = []
    for row, token in zip(logprobs, ids, strict=True):
        top = np.argsort(-row)[:20]
        places.append({str(one): float(row[one]) for one in (*top, token)})
    rows = [
        {name: getattr(one, name) for name in one.__slots__} | {"run_id": run_id}
        for one in read_tokens(request_id, [int(token) for token in ids], places)
    ]
    store.given("tokens", *rows)


def compare_tokens(store, p, q, ids):
    """Rows of read_reading for answers of one token each, which the engine of `a` and that of `run` have read."""
    source = {"prompts": {"source": {"kind": "reread", "run": "r", "reads": ["a", "again"]}}}
    store.given("runs", {"spec_json": json.dumps(source)})
    names = [f"{place:02}" for place in range(len(ids))]
    store.given("requests", *({"request_id": name, "prompt_id": name} for name in names))
    for run_id, logprobs in (("a", p), ("run", q)):
        for place, name in enumerate(names):
            give_reading(store, run_id, logprobs[place : place + 1], ids[place : place + 1], name)
    return read_reading(store.connection, "run")


def find_full_kl(p, q):
    return (np.exp(p, dtype=np.float64) * (p - q)).sum(axis=-1)


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.5])
def test_kl_is_a_lower_bound_of_that_over_the_vocabulary(store, noise):
    p, q, generator = make_engines(noise)
    ids = [generator.choice(VOCABULARY, p=np.exp(row) / np.exp(row).sum()) for row in p.astype(float)]
    rows = compare_tokens(store, p, q, ids)
    kl, full = np.array([row["kl"] for row in rows]), find_full_kl(p, q)
    assert len(kl) == TOKENS and (kl >= 0).all()
    assert (kl <= full * (1 + 1e-3) + 1e-6).all()
    assert kl.mean() >= 0.75 * full.mean()
    assert [row["other_tokens"] for row in rows] == list(p.argmax(axis=1) != q.argmax(axis=1))
    change = [row["nll_change"] for row in rows]
    assert change == pytest.approx([p[n, one] - q[n, one] for n, one in enumerate(ids)], abs=1e-6)


def test_equal_engines_have_no_divergence(store):
    p, _, generator = make_engines(0.0)
    ids = generator.integers(0, VOCABULARY, TOKENS)
    noisy = (p + generator.normal(0, 1e-6, p.shape)).astype(np.float32)
    assert max(row["kl"] for row in compare_tokens(store, p, noisy, ids)) <= 1e-6


def test_a_rank_beyond_the_likeliest_is_not_known_and_small_tokens_are_in_the_rest(store):
    p, _, _ = make_engines(0.0)
    ids = [int(np.argsort(-row)[place]) for place, row in zip((0, 2, 500), p[:3], strict=True)]
    give_reading(store, "a", p[:3], ids)
    rows = store.rows("token", run_id="a")
    assert [row["rank"] for row in rows] == [1, 3, None]
    for row, logprobs in zip(rows, p[:3], strict=True):
        assert row["first_token_id"] == logprobs.argmax() and row["first_logprob"] == round(float(logprobs.max()), 3)
        assert row["logprob"] == pytest.approx(float(logprobs[row["token_id"]]))
        listed = np.exp(logprobs[row["top_token_ids"]].astype(float))
        assert (listed >= 0.004).all() and row["rest_share"] == pytest.approx(1 - listed.sum(), abs=1e-6)


def test_metrics_of_a_reading(store):
    """Six answers of 40 tokens: means over prompts, counts over tokens."""
    store.given("runs", {"run_id": "a"}, {"run_id": "again"})
    source = {"prompts": {"source": {"kind": "reread", "run": "r", "reads": ["a", "again"]}}}
    store.given("runs", {"spec_json": json.dumps(source)})
    kls, first, changes, same = [], [], [], 0
    for number in range(6):
        p, q, generator = make_engines(0.3, seed=number)
        _, near, _ = make_engines(0.02, seed=number)
        name, ids = str(number), generator.integers(0, VOCABULARY, TOKENS)
        store.given("requests", {"request_id": name, "prompt_id": name})
        for run_id, logprobs in (("a", p), ("run", q), ("again", near)):
            give_reading(store, run_id, logprobs, ids, name)
        (row,) = [row for row in read_reading(store.connection, "run") if row["request_id"] == name]
        kls.append(row["kl"])
        differ = p.argmax(axis=1) != q.argmax(axis=1)
        same += int((~differ).sum())
        first += [int(np.flatnonzero(differ)[0]) + 1] if differ.any() else []
        changes += row["logprob_changes"]
    store.measure()
    found = {
        row["metric"]: row for row in store.read("from metric_values where run_id = 'run' and source = '95_reread'")
    }
    assert found["kl"]["value"] == pytest.approx(np.mean(kls)) and found["kl"]["n"] == 6
    assert found["kl"]["low"] < np.mean(kls) < found["kl"]["high"]
    assert found["kl_ratio"]["low"] > 20 and 0 < found["kl_floor"]["value"] < np.mean(kls) / 20
    assert found["same_top"]["value"] == pytest.approx(same / 240) and found["same_top"]["n"] == 240
    assert found["other_tokens"]["value"] == 240 - same and found["other_answers"]["value"] == len(first)
    assert found["first_other_token"]["value"] == sorted(first)[len(first) // 2]
    assert found["logprob_change"]["value"] == pytest.approx(np.quantile(changes, 0.999))
    assert store.read("from metric_values where run_id = 'a' and source = '95_reread'") == []


@pytest.mark.parametrize("is_forward", [True, False])
def test_a_tie_is_told_from_engines_that_disagree(store, is_forward):
    """Greedy answers of two engines, whose logits differ by noise, or by a fault in one of the answers."""
    read, reader = ("base", "run") if is_forward else ("run", "base")
    spec = {"prompts": {"source": {"kind": "reread", "run": read, "reads": ["a", "again"]}}, "engine": {"args": {}}}
    for run_id in ("base", "run"):
        store.given("runs", {"run_id": run_id, "model_id": run_id, "spec_json": '{"engine": {"args": {}}}'})
    reading = {"purpose": "reread", "model_id": reader, "spec_json": json.dumps(spec)}
    store.given("runs", {**reading, "run_id": "read"})
    store.given("runs", {"run_id": "a"}, {"run_id": "again"})
    expected = {}
    for name, fault in (("tie", 0.0), ("fault", 1.5), ("sampled", 0.0), ("same", 0.0)):
        generator = np.random.default_rng(1)
        logits = generator.normal(0, 4, (TOKENS, VOCABULARY))
        logits[7, [3, 4]] = logits[7].max() + 3 + np.array([0.001, 0.0])
        near, other = (logits + generator.normal(0, 0.02, logits.shape) for _ in range(2))
        own = logits + 0.0
        other[7, [3, 4]] = logits[7, [3, 4]] + [0.0, 0.01]
        other += fault * generator.normal(0, 1, logits.shape) * (np.arange(TOKENS) < 7)[:, None]
        ids = own.argmax(axis=1)
        others = ids.copy() if name == "same" else np.where(np.arange(TOKENS) < 7, ids, other.argmax(axis=1))
        for run_id, answer in ((read, ids), (reader, others)):
            heat = 1 if name == "sampled" else 0
            row = {"run_id": run_id, "request_id": name, "prompt_token_ids": [1, 2]}
            store.given("requests", row | {"prompt_id": name, "sampling_json": json.dumps({"temperature": heat})})
            store.given("completions", {"run_id": run_id, "request_id": name, "output_token_ids": answer.tolist()})
        for run_id, one in (("a", own), ("again", near), ("read", other)):
            give_reading(store, run_id, log_softmax(one), ids, name)
        expected[name] = log_softmax(own), log_softmax(other), ids
    store.measure()
    found = {row["request_id"]: row for row in read_autopsies(store.connection, "run", "base")}
    assert {name: row["is_tie"] for name, row in found.items()} == {"tie": True, "fault": False}
    for name, row in found.items():
        own, other, ids = expected[name]
        sides = ("baseline", "candidate") if is_forward else ("candidate", "baseline")
        shares = [row[f"{engine}_p_{token}"] for engine in sides for token in sides]
        assert row["place"] == 8
        assert shares == pytest.approx(np.exp([own[7, 3], own[7, 4], other[7, 3], other[7, 4]]), abs=1e-3)
        change = np.mean([own[n, ids[n]] - other[n, ids[n]] for n in range(7)])
        assert row["nll_change"] == pytest.approx(change if is_forward else -change, abs=1e-6)
        assert "part at token 8: " in say_autopsy(row)
    summary = "Of 2 read answers that part, 1 is a tie broken differently; before 1, the engines disagreed."
    assert say_autopsies(list(found.values())) == summary
    for run_id, value in (("base", 1.0), ("run", 0.0)):
        store.given("prompts", *({"run_id": run_id, "prompt_id": name} for name in expected))
        store.given("scorers", {"run_id": run_id})
        store.given("scores", *({"run_id": run_id, "prompt_id": name, "value": value} for name in expected))
    store.measure()
    section = describe_comparison(read_comparison(store.connection, "run", "base"))
    assert Paragraph(summary) in section.blocks
    said = [fact for block in section.blocks if isinstance(block, Sample) for _, fact in block.facts]
    assert {one for one in said if "part" in one} == {say_autopsy(row) for row in found.values()}
