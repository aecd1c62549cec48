"""How pip is configured on this machine, told to uv, which does not read it: indexes, folders, certificates, proxy.

Everything is passed on in variables of the child's environment, so no address is written or printed anywhere.
"""

import ast
import os
import ssl
import subprocess
from collections.abc import Mapping
from pathlib import Path

SECTIONS = ("global", "install", ":env:")
"""Later ones win, as with pip."""
OWN_INDEX = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")


UNCONSTRAINED = {"PIP_CONSTRAINT": os.devnull}
"""For pip: pins are exact, and beside a constraint pip reports a missing file as a conflict."""


def read_pip_settings(python: Path) -> dict[str, str]:
    """What `pip config list` says, by name of the option; nothing where this Python has no pip."""
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "config", "list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return parse_pip_settings(done.stdout) if done.returncode == 0 else {}


def parse_pip_settings(text: str) -> dict[str, str]:
    """Options and values of the text of `pip config list`: lines such as `global.index-url='…'`."""
    found: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
    for line in text.splitlines():
        key, equals, quoted = line.partition("=")
        section, _, option = key.rpartition(".")
        if equals and section in found:
            try:
                found[section][option] = str(ast.literal_eval(quoted))
            except (SyntaxError, ValueError):
                continue  # no setting, but a warning of pip
    return {option: value for section in SECTIONS for option, value in found[section].items()}


def uv_variables(settings: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The same for uv, as variables. What is set for uv itself already is left alone."""
    # As with pip, all indexes count alike. uv would otherwise stop at the first that knows a package's name.
    variables = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    if not any(environ.get(name) for name in OWN_INDEX):
        variables |= {
            "UV_DEFAULT_INDEX": settings.get("index-url", ""),
            "UV_INDEX": " ".join(reachable(settings.get("extra-index-url", ""))),
            "UV_FIND_LINKS": ",".join(reachable(settings.get("find-links", ""))),
        }
    variables["UV_INSECURE_HOST"] = " ".join(settings.get("trusted-host", "").split())
    variables["UV_HTTP_TIMEOUT"] = settings.get("timeout") or settings.get("default-timeout", "")
    certificates = settings.get("cert", "")
    variables["SSL_CERT_DIR" if Path(certificates or os.devnull).is_dir() else "SSL_CERT_FILE"] = certificates
    variables["SSL_CLIENT_CERT"] = settings.get("client-cert", "")
    for name in ("HTTP_PROXY", "HTTPS_PROXY"):
        if not environ.get(name.lower()):
            variables[name] = settings.get("proxy", "")
    paths = ssl.get_default_verify_paths()
    if certificates or paths.cafile or paths.capath:
        variables |= {"UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1"}  # new name and old
    return {name: value for name, value in variables.items() if value and not environ.get(name)}


def reachable(values: str) -> list[str]:
    """Of addresses and folders those that are not folders that are gone: pip warns of one, uv stops."""
    return [value for value in values.split() if _is_elsewhere(value) or Path(value.removeprefix("file://")).exists()]


def _is_elsewhere(value: str) -> bool:
    return "://" in value and not value.startswith("file://")


def without_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment in which neither pip nor uv knows any index, folder or configuration file."""
    bare = {name: value for name, value in environ.items() if not name.startswith("PIP_") and name not in OWN_INDEX}
    return {**bare, "PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1", "UV_OFFLINE": "1", "PIP_NO_INDEX": "1"}
