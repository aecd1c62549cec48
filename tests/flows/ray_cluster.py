"""A Ray cluster of several nodes on loopback, each with an address and a working folder of its own; for test_ray.py.

    python ray_cluster.py FOLDER

Prints the cluster's address. The first node has the cluster's head and no CPU, so no worker runs there. Then each line of
standard input is a command, which is answered by a line: `add ADDRESS GPUS` starts a node with one CPU, `kill ADDRESS` kills
 it at once, as a machine that loses power. Ends with its standard input. 127.0.0.1 is not an address for a node: Ray
replaces it by the machine's outward one.
"""

import os
import sys
from pathlib import Path

from ray.cluster_utils import Cluster

HEAD = "127.0.0.2"


def main(folder: Path) -> None:
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
