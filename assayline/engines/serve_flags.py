"""vLLM's engine arguments, which a spec names as Python does, as flags of its server's command line."""

import json
from collections.abc import Mapping

from assayline.records import Json


def list_flags(args: Mapping[str, Json]) -> list[str]:
    """`max_num_seqs: 8` becomes `--max-num-seqs=8`; what is None is left out.

    Values are put behind an equals sign, so that a negative number is not taken for a flag; lists, which vLLM's parser
    takes as several words, cannot be.
    """
    flags: list[str] = []
    for name, value in args.items():
        flag = name.replace("_", "-")
        match value:
            case None:
                pass
            case bool():
                flags.append(f"--{flag}" if value else f"--no-{flag}")
            case dict():
                flags.append(f"--{flag}={json.dumps(value)}")
            case list() | tuple():
                flags += [f"--{flag}", *(item if isinstance(item, str) else json.dumps(item) for item in value)]
            case _:
                flags.append(f"--{flag}={value}")
    return flags
