"""draft_use: how often drafts of speculative decoding are accepted, by position, and the run's sums."""


def test_a_run_without_drafts_has_no_row(store):
    store.given_answers({"output_tokens": 5}, {"output_tokens": 5, "acceptance_histogram": None})
    assert store.rows("draft_use") == []


def test_positions_and_sums_by_hand(store):
    store.given_answers(
        {"acceptance_histogram": [2, 0, 1], "draft_tokens": 5},
        {"acceptance_histogram": [1, 3, 3], "draft_tokens": 15},
        {"acceptance_histogram": [9, 9, 9], "draft_tokens": 54, "error_kind": "any"},
        {"output_tokens": 5},
    )
    sums = {
        "requests": 2,
        "drafts": 10,
        "draft_tokens": 20,
        "accepted_tokens": 11,
        "acceptance_length": 2.1,
        "draft_acceptance": 0.55,
    }
    store.expect(
        "draft_use", {"position": 1, "accepted_share": 0.7, **sums}, {"position": 2, "accepted_share": 0.4, **sums}
    )


def test_a_run_whose_draft_found_nothing_has_no_acceptance(store):
    store.given_answers({"acceptance_histogram": [0, 0], "draft_tokens": 0})
    assert store.rows("draft_use") == []
