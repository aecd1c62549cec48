"""A Ray cluster of several nodes on loopback, each with an address of its own; run by test_ray_nodes.py.

    python ray_cluster.py NODES

Prints the cluster's address, then for each line with a node's address that it reads kills that node at once, as a
machine that loses power. Ends with its standard input. The first node, with the cluster's head, must live. 127.0.0.1 is
no address for a node: Ray replaces it by the machine's outward one.
"""

import sys

from ray.cluster_utils import Cluster

ADDRESSES = [f"127.0.0.{number}" for number in range(2, 100)]


def main(nodes: int) -> None:
    places = [
        {"num_cpus": 1, "num_gpus": 0, "object_store_memory": 80_000_000, "node_ip_address": address}
        for address in ADDRESSES[:nodes]
    ]
    cluster = Cluster(initialize_head=True, head_node_args={**places[0], "include_dashboard": False})
    try:
        others = {place["node_ip_address"]: cluster.add_node(**place) for place in places[1:]}
        cluster.wait_for_nodes()
        print(cluster.address, flush=True)
        for line in sys.stdin:
            cluster.remove_node(others.pop(line.strip()), allow_graceful=False)
            print("killed", flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
