"""How far uv or pip is, read from what they write."""

import re

UNITS = {"KiB": 1 / 1024, "MiB": 1.0, "GiB": 1024.0}


def describe_uv(output: str, total: int) -> str:
    """For example `fetched 12 of 46 large files, 240 of 812 MiB; fetching torch, ray and 32 more`."""
    if "\nInstalled " in output:
        return f"installed {count(total)}"
    if "\nPrepared " in output:
        return f"fetched; putting {count(total)} in place"
    sizes = {name: float(number) * UNITS[unit] for name, number, unit in SIZE.findall(output)}
    if not sizes:
        return f"looked up {count(total)}" if "\nResolved " in output else f"looking up {count(total)}"
    done = set(DONE.findall(output)) & sizes.keys()
    waiting = sorted(sizes.keys() - done, key=lambda name: -sizes[name])
    text = (
        f"fetched {len(done)} of {len(sizes)} large files, "
        f"{sum(sizes[name] for name in done):.0f} of {sum(sizes.values()):.0f} MiB"
    )
    more = f" and {len(waiting) - 2} more" if len(waiting) > 2 else ""
    return f"{text}; fetching {', '.join(waiting[:2])}{more}" if waiting else f"{text}; unpacking"


def describe_pip(output: str, total: int) -> str:
    """For example `37 of 253 packages: numpy`."""
    names = re.findall(r"^Collecting ([\w.-]+)", output, flags=re.MULTILINE)
    if "Installing collected packages" in output:
        return f"fetched; putting {count(total)} in place, which takes a while"
    return f"{len(names)} of {count(total)}: {names[-1]}" if names else f"looking up {count(total)}"


def is_fetching(output: str) -> bool:
    """Whether uv or pip certainly has not changed the environment yet."""
    if re.search(r"^Collecting ", output, flags=re.MULTILINE):
        return "Installing collected packages" not in output
    return bool(SIZE.search(output)) and "\nPrepared " not in output


def count(packages: int) -> str:
    """`1 package`, `2 packages`."""
    return f"{packages} package{'' if packages == 1 else 's'}"


SIZE = re.compile(r"^Downloading (\S+) \(([\d.]+)(KiB|MiB|GiB)\)", re.MULTILINE)
DONE = re.compile(r"^ +Downloaded (\S+)", re.MULTILINE)
