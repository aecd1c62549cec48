"""turn_latency: how long prompts and answers were from turn to turn, and what the prefix cache had of them."""

import numpy as np
import pytest


def given_turns(store, turns, answers):
    """Conversations of `turns` turns each, as requests in the order of conversation and turn, with their answers."""
    ids = [(number, turn) for number, count in enumerate(turns) for turn in range(count)]
    store.given("runs", {"expected_requests": len(ids)})
    store.given("prompts", *({"prompt_id": str(number), "target": "t"} for number in range(len(turns))))
    store.given(
        "requests",
        *(
            {"request_id": f"{number}.{turn}", "prompt_id": str(number), "turn_index": turn, "turns": turns[number]}
            for number, turn in ids
        ),
    )
    for (number, turn), answer in zip(ids, answers, strict=True):
        store.given("completions", {"request_id": f"{number}.{turn}", **answer})


def answer(ttft_s, e2e_s=1.0, **columns):
    stamps = {"arrived_at_s": 0.0, "first_token_at_s": ttft_s, "last_token_at_s": e2e_s, "finished_at_s": e2e_s}
    return {**stamps, "output_tokens": 3, "finish_reason": "stop", "text": "a", **columns}


def test_a_run_without_turns_has_no_row(store):
    store.given_answers(answer(0.1))
    assert store.rows("turn_latency") == []


def test_turns_by_hand(store):
    given_turns(
        store,
        [3, 1],
        [
            answer(0.4, prompt_tokens=100, cached_tokens=0),
            answer(0.1, 2.0, prompt_tokens=150, cached_tokens=120, output_tokens=5),
            {"error_kind": "earlier_turn"},
            answer(0.2, 3.0, prompt_tokens=50, cached_tokens=10),
        ],
    )
    columns = ("turn_index", "requests", "ok_requests", "error_requests", "mean_prompt_tokens", "mean_output_tokens",
               "cached_share", "ttft_p50_s", "tpot_p50_s", "e2e_p95_s")  # fmt: skip
    store.expect(
        "turn_latency",
        dict(zip(columns, (0, 2, 2, 0, 75.0, 3.0, 10 / 150, 0.3, (0.3 + 1.4) / 2, 1.0 + 0.95 * 2.0), strict=True)),
        dict(zip(columns, (1, 1, 1, 0, 150.0, 5.0, 0.8, 0.1, 1.9 / 4, 2.0), strict=True)),
        dict(zip(columns, (2, 1, 0, 1, None, None, None, None, None, None), strict=True)),
    )


def test_a_sample_is_the_answer_to_the_last_turn(store):
    given_turns(store, [2, 1], [answer(0.1, text="first"), answer(0.1, text="last"), answer(0.1, text="only")])
    store.expect("stg_samples", {"request_id": "0.1", "answer": "last"}, {"request_id": "1.0", "answer": "only"})


def test_a_sample_that_is_shown_has_the_conversation_before_it(store):
    given_turns(store, [2, 1], [answer(0.1, text="four"), answer(0.1, text="eight"), answer(0.1, text="only")])
    for turn, said in enumerate(('[{"role": "system", "content": "s"}, {"role": "user", "content": "2 + 2"}]',
                                 '[{"role": "user", "content": "twice that"}]')):  # fmt: skip
        store.connection.execute(
            "update requests set turn_messages_json = ? where prompt_id = '0' and turn_index = ?", [said, turn]
        )
    store.connection.execute("update requests set rendered = '<user>once' where prompt_id = '1'")
    store.given("scorers", {})
    store.given("scores", *({"prompt_id": str(number), "value": 0.0} for number in range(2)))
    query = "select prompt_id, rendered, answer from show_samples('run', 1, 9) order by prompt_id"
    assert store.connection.execute(query).fetchall() == [
        ("0", "system: s\nuser: 2 + 2\nassistant: four\nuser: twice that", "eight"),
        ("1", "<user>once", "only"),
    ]


@pytest.mark.parametrize("seed", range(2))
def test_against_numpy(store, seed):
    random = np.random.default_rng(seed)
    turns = random.integers(1, 5, 40)
    turn_of = np.concatenate([np.arange(count) for count in turns])
    n = len(turn_of)
    prompts = random.integers(20, 500, n)
    cached = [None if random.random() < 0.2 else int(random.integers(0, tokens)) for tokens in prompts]
    ttft, decode = random.exponential(0.1, n), random.exponential(1.0, n)
    given_turns(
        store,
        [int(count) for count in turns],
        [
            answer(ttft[i], ttft[i] + decode[i], prompt_tokens=int(prompts[i]), cached_tokens=cached[i])
            for i in range(n)
        ],
    )
    known = np.array([tokens is not None for tokens in cached])
    found = np.array([tokens or 0 for tokens in cached])
    expected = []
    for turn in range(turns.max()):
        here = turn_of == turn
        tokens = prompts[here & known].sum()
        expected.append({
            "turn_index": turn,
            "requests": int(here.sum()),
            "mean_prompt_tokens": float(prompts[here].mean()),
            "cached_share": float(found[here & known].sum() / tokens) if tokens else None,
            "ttft_p50_s": float(np.quantile(ttft[here], 0.5)),
            "ttft_p95_s": float(np.quantile(ttft[here], 0.95)),
            "tpot_p95_s": float(np.quantile(decode[here] / 2, 0.95)),
            "e2e_p50_s": float(np.quantile((ttft + decode)[here], 0.5)),
        })  # fmt: skip
    store.expect("turn_latency", *expected)
