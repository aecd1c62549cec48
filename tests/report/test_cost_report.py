"""The report's sections on devices, energy, cost, and telemetry over time."""

import json

import pytest
from row_kit import text_of

from assayline.report.make import make_report
from assayline.settings import Settings
from assayline.store.database import connect

pytestmark = pytest.mark.slow

ANSWER = {"arrived_at_s": 10.0, "finished_at_s": 20.0, "output_tokens": 50, "prompt_tokens": 5, "text": "an answer"}
EVENTS = (
    ("opened", 8.0, 5.0, {"claimed_gpus": 1}),
    ("failed", 12.5, None, {"kind": "device_oom", "is_memory": True, "phase": "run", "in_flight_requests": 2}),
    ("reduced", 12.5, None, {"window_requests": {"from": 8, "to": 4}}),
    ("closed", 21.0, 0.5, {}),
)


def give_telemetry(settings: Settings, run_id: str, *, has_counter: bool) -> None:
    with connect(settings.database_path, 10) as connection:
        for event, at_s, duration_s, details in EVENTS:
            connection.execute(
                "insert into engine_events values (?, 'worker-0', 1, 0, ?, ?, ?, null, ?)",
                [run_id, event, at_s, duration_s, json.dumps(details)],
            )
        connection.execute(
            "insert into device_telemetry by name select ? as run_id, 'worker-0' as worker, 'cuda-0' as device, "
            "second::double as at_s, 0.5 as utilization_share, 300.0 as power_watts, "
            "if(?, 300.0 * second, null) as energy_joules, 'sw_power_cap' as throttle_reasons "
            "from range(3, 22) as t(second)",
            [run_id, has_counter],
        )
        connection.execute(
            "insert into telemetry by name select ? as run_id, 'worker-0' as worker, 0 as engine_generation, "
            "second::double as at_s, second as engine_steps, 2 as in_flight_requests, 5 * second as output_tokens, "
            "second / 25 as kv_cache_usage_share from range(10, 21) as t(second)",
            [run_id],
        )


def test_cost_energy_and_telemetry_are_shown(sad, tmp_path):
    sad.given("dear", "completed", {**ANSWER, "score": 1.0, "target": "x"}, {**ANSWER, "score": 0.0, "target": "x"})
    give_telemetry(sad.settings, "dear", has_counter=True)
    with connect(sad.settings.database_path, 10) as connection:
        spec = {"engine": {}, "price": {"currency": "EUR", "per_gpu_hour": 3.6}}
        connection.execute("update runs set spec_json = ?", [json.dumps(spec)])
    written = make_report(sad.settings, "dear", folder=tmp_path)
    page = text_of(written.html).replace("\u00a0", " ")
    assert "Cost: 0.018 EUR, including loading and downtime; 0.01 EUR per correct answer while generating" in page
    assert "1 GPU used 5,400 J (from energy counters), including 2,400 J with no engine generating." in page
    assert "While generating, that is 30 J per output token." in page
    assert "sw_power_cap" in page
    assert "| per correct answer | 0.01 EUR |" in written.text.replace("\u00a0", " ")
    html = written.html.read_text(encoding="utf-8")
    for title in ("KV cache", "Power"):
        assert f"{title}</" in html, title
    assert '"style": "event"' in html or '"style":"event"' in html


def test_cost_report_shows_the_error_of_integrated_energy_and_no_cost_without_a_price(sad, tmp_path):
    sad.given("free", "completed", dict(ANSWER))
    give_telemetry(sad.settings, "free", has_counter=False)
    page = text_of(make_report(sad.settings, "free", folder=tmp_path).html).replace("\u00a0", " ")
    assert "integrated from power samples, with an error of at most 270 J" in page
    assert "Cost:" not in page and "per correct answer" not in page


def test_a_cost_that_is_not_known_is_said_not_to_be(sad, tmp_path):
    sad.given("unknown", "completed", dict(ANSWER))
    with connect(sad.settings.database_path, 10) as connection:
        spec = {"engine": {}, "price": {"currency": "EUR", "per_kwh": 0.3}}
        connection.execute("update runs set spec_json = ?", [json.dumps(spec)])
    page = text_of(make_report(sad.settings, "unknown", folder=tmp_path).html)
    assert "Cost unknown: a priced quantity" in page
