"""How large an engine is: the arguments that cost memory, and what changed between two engines."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from assayline.engines.event_details import Changes
from assayline.load.course import LoadCourse
from assayline.records import Json
from assayline.spec.engine import EngineSpec


@dataclass(frozen=True, slots=True)
class Sizes:
    """What an engine gets of everything that costs memory. None: vLLM's own choice, known once it is open."""

    window_requests: int | None = None
    """Most requests in flight. It alone bounds what grows at run time; the others are vLLM's arguments."""
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    gpu_memory_utilization: float | None = None
    """Share of the device's memory, 0 to 1; on a CPU, of the machine's."""
    kv_cache_memory_bytes: int | None = None
    """Size of the KV cache; where it is given, vLLM ignores gpu_memory_utilization for it."""

    def resolve(self, details: Mapping[str, Json], window_requests: int | None) -> "Sizes":
        """These sizes with vLLM's own choices filled in, as an opened engine tells them."""
        values = {name: details.get(name) if value is None else value for name, value in asdict(self).items()}
        return Sizes(**{**values, "window_requests": self.window_requests or window_requests})


def sizes_of(args: Mapping[str, Json], window_requests: int | None) -> Sizes:
    """The sizes that a spec's engine arguments give."""
    names = [name for name in Sizes.__dataclass_fields__ if name != "window_requests"]
    return Sizes(window_requests=window_requests, **{name: args.get(name) for name in names})


def choose_window(engine: EngineSpec, course: LoadCourse) -> int | None:
    """Most requests in flight, as load or spec give it. None: the engine's own choice; in an open loop, no limit."""
    if course.is_open_loop:
        return None
    return course.window_requests or (engine.batch_size if engine.mode == "barrier" else engine.max_concurrency)


def list_changes(before: Sizes, after: Sizes) -> Changes:
    """What differs, as {name: {from, to}}."""
    old, new = asdict(before), asdict(after)
    return {name: {"from": old[name], "to": new[name]} for name in old if old[name] != new[name]}


def describe_changes(changes: Changes) -> str:
    """The changes as a person reads them."""
    return ", ".join(f"{name} {change['from']} → {change['to']}" for name, change in changes.items())
