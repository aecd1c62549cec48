"""When requests are due: rates, distributions of the gaps, reproducibility, and resuming in the middle."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from assayline.errors import SpecError
from assayline.load.arrivals import check_trace, list_offsets
from assayline.spec.load import Arrival, LoadSpec
from assayline.spec.prompts import TraceSource

GAPS = 20_000
SUSPICIOUS = 1e-3
"""p-value below which gaps are taken for those of another distribution. Seeds are fixed: the tests are not random."""


def arrival_of(**values: Any) -> Arrival:
    arrival: Arrival = TypeAdapter(Arrival).validate_python(values)
    return arrival


def offsets_of(count: int, first: int = 0, **values: Any) -> list[float]:
    return list(itertools.islice(list_offsets(arrival_of(**values), first), count))


def gaps_of(count: int, **values: Any) -> list[float]:
    return [after - before for before, after in itertools.pairwise(offsets_of(count + 1, **values))]


RANDOM = [
    {"kind": "poisson", "rate_per_s": 4.0, "seed": 1},
    {"kind": "poisson", "rate_per_s": 4.0, "burstiness": 0.25, "seed": 2},
    {"kind": "poisson", "rate_per_s": 0.5, "burstiness": 4.0, "seed": 3},
]
PATTERNS = [{"kind": "all_at_once"}, {"kind": "constant", "rate_per_s": 3.0}, *RANDOM]


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_every_pattern_begins_at_zero_and_never_goes_back(pattern):
    offsets = offsets_of(500, **pattern)
    assert offsets[0] == 0
    assert all(0 <= before <= after < math.inf for before, after in itertools.pairwise(offsets))


def test_all_at_once_is_at_once_and_constant_is_even():
    assert set(offsets_of(99, kind="all_at_once")) == {0.0}
    assert offsets_of(5, kind="constant", rate_per_s=4) == [0, 0.25, 0.5, 0.75, 1.0]
    assert offsets_of(1, first=3_000_000, kind="constant", rate_per_s=3) == [1_000_000], "nothing is added up"


@pytest.mark.parametrize("pattern", RANDOM, ids=str)
def test_gaps_have_the_rate_and_the_distribution_that_were_asked_for(pattern):
    gaps = gaps_of(GAPS, **pattern)
    shape = pattern.get("burstiness", 1.0)
    expected = scipy.stats.gamma(shape, scale=1 / (shape * pattern["rate_per_s"]))
    assert scipy.stats.kstest(gaps, expected.cdf).pvalue > SUSPICIOUS
    other = scipy.stats.gamma(shape * 1.1, scale=1 / (1.1 * shape * pattern["rate_per_s"]))
    assert scipy.stats.kstest(gaps, other.cdf).pvalue < SUSPICIOUS, "the test would see a shape that is off by a tenth"
    mean_error = expected.std() / math.sqrt(GAPS)
    assert sum(gaps) / GAPS == pytest.approx(1 / pattern["rate_per_s"], abs=4 * mean_error)


def test_poisson_counts_are_poisson():
    """Not the gaps alone: how many come in a second is as irregular as it is frequent."""
    offsets = offsets_of(GAPS, kind="poisson", rate_per_s=10, seed=7)
    seconds = int(offsets[-1])
    counts = [0] * seconds
    for offset in offsets:
        if offset < seconds:
            counts[int(offset)] += 1
    mean = sum(counts) / seconds
    dispersion = sum((count - mean) ** 2 for count in counts) / mean
    assert SUSPICIOUS < scipy.stats.chi2(seconds - 1).cdf(dispersion) < 1 - SUSPICIOUS


@hypothesis_settings(deadline=None, max_examples=hypothesis_settings.default.max_examples // 2)
@given(st.sampled_from(PATTERNS), st.integers(0, 2**32), st.integers(0, 300), st.floats(0.01, 1e4))
def test_a_pattern_is_the_same_again_and_goes_on_where_it_was(pattern, seed, first, rate):
    values = {**pattern, **({"rate_per_s": rate} if "rate_per_s" in pattern else {})}
    values |= {"seed": seed} if "seed" in pattern else {}
    whole = offsets_of(first + 20, **values)
    assert whole == offsets_of(first + 20, **values)
    assert offsets_of(20, first, **values) == whole[first:]


def test_another_seed_is_another_sequence():
    one, other = (offsets_of(20, kind="poisson", rate_per_s=1, seed=seed) for seed in (0, 1))
    assert not set(one[1:]) & set(other[1:])


class TestTrace:
    ROWS = ({"t": 1000.5, "x": "a"}, {"t": 1001, "x": "b"}, {"t": 1001, "x": "c"}, {"t": 1004.25, "x": "d"})

    def write(self, path: Path, rows: Any = ROWS) -> str:
        if path.suffix == ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        elif path.suffix == ".csv":
            path.write_text("\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]))
        else:
            pq.write_table(pa.Table.from_pylist(list(rows)), path)
        return str(path)

    @pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
    def test_stamps_are_seconds_since_the_first(self, tmp_path, ending):
        path = self.write(tmp_path / f"trace.{ending}")
        assert offsets_of(9, kind="trace", path=path, column="t") == [0, 0.5, 0.5, 3.75]
        assert offsets_of(9, first=2, kind="trace", path=path, column="t") == [0.5, 3.75]
        assert offsets_of(9, first=4, kind="trace", path=path, column="t") == []
        assert offsets_of(9, kind="trace", path=path, column="t", speed=2) == [0, 0.25, 0.25, 1.875]
        assert offsets_of(9, kind="trace", path=path, column="t", unit="ms") == [0, 0.0005, 0.0005, 0.00375]

    @pytest.mark.parametrize(
        ("rows", "words"),
        [
            ([{"time": 1}], "row 1 of the trace .* has no column 't', only time"),
            ([{"t": 1}, {"t": "soon"}], "row 2 .* has t 'soon', expected a number of s"),
            ([{"t": None}], "has t None, expected a number"),
            ([{"t": True}], "has t True, expected a number"),
            ([{"t": "nan"}], "expected a number"),
            ([{"t": "inf"}], "expected a number"),
            ([{"t": 10**400}], "expected a number"),
            ([{"t": "2026-01-01T00:00:00"}], "For dates, set load.arrival.unit to date"),
            ([{"t": 5}, {"t": 7}, {"t": 6.5}], "row 3 .* has t 6.5, less than the 7 above it"),
            ([], "has no rows"),
        ],
    )
    def test_arrivals_error_names_the_invalid_row(self, tmp_path, rows, words):
        load = load_of(self.write(tmp_path / "trace.jsonl", rows))
        with pytest.raises(SpecError, match=words):
            check_trace(load)

    def test_dates_are_stamps_too(self, tmp_path):
        dates = ["2023-11-16 18:01:50.2500000", "2023-11-16 18:01:51", "2023-11-16 20:01:52+02:00"]
        path = self.write(tmp_path / "trace.csv", [{"t": date} for date in dates])
        found = offsets_of(9, kind="trace", path=path, column="t", unit="date")
        assert found == pytest.approx([0, 0.75, 1.75], abs=1e-6)
        path = self.write(tmp_path / "trace.csv", [{"t": date} for date in reversed(dates)])
        load = LoadSpec.model_validate({"arrival": {"kind": "trace", "path": path, "column": "t", "unit": "date"}})
        with pytest.raises(SpecError, match=r"has t 2023-11-16 18:01:51\+00:00, less than the 2023-11-16 18:01:52"):
            check_trace(load)

    def test_the_source_s_own_times_are_checked_before_the_run(self, tmp_path):
        rows = [{"timestamp": stamp, "input_length": 1, "output_length": 1} for stamp in (5, 7, 6)]
        source = TraceSource(kind="trace", path=self.write(tmp_path / "trace.jsonl", rows))
        load = LoadSpec.model_validate({"arrival": {"kind": "trace"}})
        with pytest.raises(SpecError, match=r"row 3 .* has timestamp 6, less than the 7 above it"):
            check_trace(load, source)
        check_trace(load, source.model_copy(update={"path": self.write(tmp_path / "ok.jsonl", rows[:2])}))

    def test_a_trace_that_is_missing_is_a_mistake_in_the_spec(self, tmp_path):
        with pytest.raises(SpecError, match=r"load\.arrival\.path.*none\.csv does not exist"):
            check_trace(load_of(str(tmp_path / "none.csv")))

    def test_a_good_trace_passes_and_other_patterns_have_none(self, tmp_path):
        check_trace(load_of(self.write(tmp_path / "trace.csv")))
        check_trace(LoadSpec.model_validate({"arrival": {"kind": "all_at_once"}}))
        check_trace(None)


def load_of(path: str) -> LoadSpec:
    return LoadSpec.model_validate({"arrival": {"kind": "trace", "path": path, "column": "t"}})
