"""A Slurm cluster of three nodes on the loopback interface, with Debian's packages slurm-wlm and munge.

    python -m scripts.slurm_loopback FOLDER

Keys, state, logs and slurm.conf, which SLURM_CONF names to sbatch, are in FOLDER. Ctrl-C ends the cluster. A node
is an address of 127.0.0.0/8, claims eight GPUs, and runs jobs as the user of this process.
"""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

NODES = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
START_S = 120.0
CONFIGURATION = """\
ClusterName=loopback
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
GresTypes=gpu
ReturnToService=2
SlurmdTimeout=30
MpiDefault=none
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODE = "NodeName={name} NodeHostname=localhost NodeAddr={name} Port={port} CPUs=64 RealMemory=1000 Gres=gpu:8\n"


class Slurm:
    """A running cluster. A node's processes end with it, or by `kill_node`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.env = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start all daemons, and wait until every node is idle. Raises RuntimeError."""
        (self.folder / "state").mkdir(parents=True)
        ports = _find_ports(1 + len(NODES))
        values = {"folder": self.folder, "user": getpass.getuser(), "port": ports[0]}
        nodes = [NODE.format(name=name, port=port) for name, port in zip(NODES, ports[1:], strict=True)]
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(**values) + "".join(nodes))
        (self.folder / "gres.conf").write_text("Name=gpu File=/dev/tty1[0-7]\n")
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self.folder.chmod(0o755)  # munge refuses a folder that others may write
        own = [f"--{name}={self.folder}/munge.{name.split('-')[0]}" for name in ("socket", "log-file", "seed-file")]
        self._start(
            "munged", "--foreground", "--force", f"--key-file={key}", f"--pid-file={self.folder}/munged.pid", *own
        )
        self._wait((self.folder / "munge.socket").exists, "munged")
        self._start("slurmctld", "-D", "-c")
        for name in NODES:
            self._start("slurmd", "-D", "-N", name)
        self._wait(lambda: self.run("sinfo", "-h", "-o", "%T %D").split() == ["idle", str(len(NODES))], "sinfo")

    def run(self, *command: str) -> str:
        """Run a command of Slurm, and return its output, empty if it fails."""
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    def kill_node(self, name: str) -> None:
        """Kill the daemon of a node and all processes of jobs on it, as a power cut does."""
        import psutil

        self._processes[f"slurmd -D -N {name}"].kill()
        for process in psutil.process_iter():
            try:
                environ = process.environ()
                if environ.get("SLURMD_NODENAME") == name and environ.get("SLURM_CONF") == self.env["SLURM_CONF"]:
                    process.kill()
            except psutil.Error:
                continue

    def close(self) -> None:
        """End all daemons."""
        for process in reversed(self._processes.values()):
            process.terminate()
        for process in self._processes.values():
            process.wait()

    def _start(self, *command: str) -> None:
        log = open(self.folder / "daemons.log", "ab")  # noqa: SIM115 - the process has it
        env = {name: value for name, value in self.env.items() if not name.startswith("ASSAYLINE_")}
        self._processes[" ".join(command)] = subprocess.Popen(
            [_find(command[0]), *command[1:]], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )

    def _wait(self, is_up, what: str) -> None:  # type: ignore[no-untyped-def]
        deadline = time.monotonic() + START_S
        while not is_up():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{what}: the cluster did not start; its logs are in {self.folder}")
            time.sleep(0.2)


def is_installed() -> bool:
    """Return whether Debian's packages slurm-wlm and munge are."""
    return all(map(_find, ("munged", "slurmctld", "slurmd", "sbatch")))


def _find(program: str) -> str:
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") or ""


def _find_ports(number: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


if __name__ == "__main__":
    if not is_installed():
        sys.exit("Slurm is not installed. hint: apt install slurm-wlm munge")
    cluster = Slurm(Path(sys.argv[1]))
    try:
        cluster.start()
        print(f"export SLURM_CONF={cluster.env['SLURM_CONF']}", flush=True)
        signal.pause()
    except KeyboardInterrupt:
        pass
    finally:
        cluster.close()
