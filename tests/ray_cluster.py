"""A Ray cluster of several nodes on loopback, each with an address and a working folder of its own; for tests.

    python ray_cluster.py FOLDER

Prints the cluster's address. The first node has the cluster's head and no CPU, so no worker runs there. Then each line
of standard input is a command, which is answered by a line: `add ADDRESS GPUS` starts a node with one CPU, and `kill
ADDRESS` kills it at once, as a machine that loses power. Ends with its standard input. 127.0.0.1 is not an address for
a node: Ray replaces it by the machine's outward one.
"""

import os
import subprocess
import sys
from pathlib import Path

import psutil

HEAD = "127.0.0.2"
TESTS = Path(__file__).resolve().parent


class Nodes:
    """A cluster in a process of its own; two nodes can have workers at first."""

    def __init__(self, folder: Path, log: Path) -> None:
        self.folder = folder
        paths = os.pathsep.join(map(str, [TESTS.parent, TESTS]))
        env = {**os.environ, "PYTHONPATH": paths, "RAY_USAGE_STATS_ENABLED": "0"}
        with log.open("w") as output:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(folder)],
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
            )
        self.address = self._read()
        self.alive: list[str] = []
        self._numbers = iter(range(3, 250))
        for _ in range(2):
            self.add()

    def add(self, gpus: int = 0) -> str:
        address = f"127.0.0.{next(self._numbers)}"
        self._tell(f"add {address} {gpus}")
        self.alive.append(address)
        return address

    def kill(self, address: str) -> None:
        self.alive.remove(address)
        self._tell(f"kill {address}")

    def keep_two(self) -> None:
        """Every test begins with two nodes without GPUs."""
        while len(self.alive) < 2:
            self.add()
        for address in self.alive[2:]:
            self.kill(address)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            for process in [*psutil.Process(self._process.pid).children(recursive=True), self._process]:
                process.kill()

    def actors(self) -> dict[int, str]:
        """The node of each process that holds a worker."""
        found = {}
        for process in psutil.Process(self._process.pid).children(recursive=True):
            try:
                if "NodeWorker" in process.cmdline()[0]:
                    found[process.pid] = _node_of(process)
            except (psutil.Error, IndexError):
                continue
        return found

    def _tell(self, command: str) -> None:
        assert self._process.stdin is not None
        print(command, file=self._process.stdin, flush=True)
        assert self._read() == "done"

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def _node_of(process: psutil.Process) -> str:
    for parent in process.parents():
        for word in parent.cmdline():
            if word.startswith("--node_ip_address="):
                return word.partition("=")[2]
    raise AssertionError(f"{process} is not a process of Ray")


def main(folder: Path) -> None:
    from ray.cluster_utils import Cluster

    size = {"object_store_memory": 80_000_000}
    head = {"num_cpus": 0, "num_gpus": 0, "node_ip_address": HEAD, "include_dashboard": False, **size}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = {}
    try:
        print(cluster.address, flush=True)
        for line in sys.stdin:
            command, address, *gpus = line.split()
            if command == "add":
                place = folder / address
                place.mkdir(exist_ok=True)
                os.chdir(place)  # where the node's processes are, too
                os.environ["ASSAYLINE_LOCK_DIR"] = str(place / "locks")
                nodes[address] = cluster.add_node(num_cpus=1, num_gpus=int(gpus[0]), node_ip_address=address, **size)
            else:
                cluster.remove_node(nodes.pop(address), allow_graceful=False)
            print("done", flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
