"""The window that an engine begins with: what load and spec make of it."""

import pytest
from engine_kit import course_of

from assayline.engines.recovery.policy import choose_window
from assayline.load.course import LoadCourse
from assayline.spec.engine import EngineSpec

OPEN_LOOP = course_of({"kind": "constant", "rate_per_s": 2.0})
CLOSED_LOOP = course_of({"kind": "concurrency", "requests": 7})


@pytest.mark.parametrize(
    ("engine", "course", "window"),
    [
        ({}, LoadCourse(), None),
        ({"max_concurrency": 5}, LoadCourse(), 5),
        ({"mode": "barrier", "batch_size": 3, "max_concurrency": 5}, LoadCourse(), 3),
        ({"backend": "async", "max_concurrency": 5}, CLOSED_LOOP, 7),
        ({"backend": "async", "max_concurrency": 5}, OPEN_LOOP, None),
    ],
    ids=["left to the engine", "as the spec says", "a batch", "as the load says", "no limit in an open loop"],
)
def test_the_window_is_chosen_in_one_place(engine, course, window):
    assert choose_window(EngineSpec.model_validate(engine), course) == window
