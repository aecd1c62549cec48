"""The metrics of a reading, against NumPy over whole vocabularies."""

import json

import numpy as np
import pytest

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
