"""turn_latency: how long prompts and answers were from turn to turn, and what the prefix cache had of them."""

from row_kit import as_rows

from assayline.report.answers import read_answer, show_prompt


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
        [3, 1, 1],
        [
            answer(0.4, prompt_tokens=100, cached_tokens=0),
            answer(0.1, 2.0, prompt_tokens=150, cached_tokens=120, output_tokens=5),
            {"error_kind": "earlier_turn"},
            answer(0.2, 3.0, prompt_tokens=50, cached_tokens=10),
            answer(0.3, 2.0, prompt_tokens=90),
        ],
    )
    store.expect(
        "turn_latency",
        *as_rows(
            "turn_index requests ok_requests error_requests mean_prompt_tokens mean_output_tokens cached_share",
            (0, 3, 3, 0, 80.0, 3.0, 10 / 150),
            (1, 1, 1, 0, 150.0, 5.0, 0.8),
            (2, 1, 0, 1, None, None, None),
        ),
    )
    store.expect(
        "turn_latency",
        *as_rows(
            "turn_index ttft_p50_s ttft_p95_s tpot_p50_s e2e_p50_s e2e_p95_s",
            (0, 0.3, 0.39, 0.85, 2.0, 2.9),
            (1, 0.1, 0.1, 1.9 / 4, 2.0, 2.0),
            (2, None, None, None, None, None),
        ),
    )


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
    rows = [read_answer(store.connection, "run", request) for request in ("0.1", "1.0")]
    assert [(row["prompt_id"], show_prompt(row).text, row["text"]) for row in rows] == [
        ("0", "system: s\nuser: 2 + 2\nassistant: four\nuser: twice that", "eight"),
        ("1", "<user>once", "only"),
    ]
