"""Pass pip's configuration of this machine on to uv, which does not read it.

All settings become environment variables for uv, so no URL is written to a file.
"""

import ast
import os
import re
import ssl
import subprocess
from collections.abc import Mapping
from pathlib import Path


def read_pip_settings(python: Path) -> dict[str, str]:
    """Parse options and values of `pip config list`, which prints lines such as `global.timeout='15'`."""
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "config", "list"]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    lines = re.findall(r"^(global|install|:env:)\.([\w-]+)=('.*'|\".*\")$", text, flags=re.MULTILINE)
    lines.sort(key=lambda line: ("global", "install", ":env:").index(line[0]))  # later settings win, as in pip
    return {option: str(ast.literal_eval(value)) for _, option, value in lines}


def uv_variables(settings: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Convert the settings to variables for uv. Existing variables are kept."""
    # All indexes are equal, as in pip. uv would otherwise stop at the first one that has a package of this name.
    variables = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    own = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")
    if not any(environ.get(name) for name in own):
        variables |= {
            "UV_DEFAULT_INDEX": settings.get("index-url", ""),
            "UV_INDEX": " ".join(existing(settings.get("extra-index-url", ""))),
            "UV_FIND_LINKS": ",".join(existing(settings.get("find-links", ""))),
        }
    certificates = settings.get("cert", "")
    system = ssl.get_default_verify_paths()
    variables |= {
        "UV_INSECURE_HOST": " ".join(settings.get("trusted-host", "").split()),
        "UV_HTTP_TIMEOUT": settings.get("timeout") or settings.get("default-timeout", ""),
        "ALL_PROXY": settings.get("proxy", ""),
        "SSL_CERT_DIR" if Path(certificates or os.devnull).is_dir() else "SSL_CERT_FILE": certificates,
        "SSL_CLIENT_CERT": settings.get("client-cert", ""),
        "UV_SYSTEM_CERTS": "1" if certificates or system.cafile or system.capath else "",
    }
    return {name: value for name, value in variables.items() if value and not environ.get(name)}


def existing(values: str) -> list[str]:
    """Return URLs, and folders that exist: pip warns about a missing folder, uv fails."""
    folders = {value: Path(value.removeprefix("file://")) for value in values.split()}
    return [value for value, folder in folders.items() if folder.exists() or re.match(r"(?!file:)\w+://", value)]
