"""Over-saturation: whether an open loop sends more than the engine can do."""


class SaturationWatch:
    """Looks at a load about once a second. Skeleton: never alarms."""

    def expect(self, due_at_s: float) -> None:
        """A request will be sent at this time."""

    def finish(self, due_at_s: float, now_s: float) -> None:
        """The request that was due then is over."""

    def observe(self, now_s: float, in_flight_requests: int, finished_requests: int) -> str | None:
        """Why the engine is taken for saturated, or None."""
        return None
