"""A sweep on a Ray cluster of three nodes on this machine, one of which is killed in the middle.

Run as a program, because Ray reads its environment when it is imported, and so that all its processes are of one
session, which whoever started the program can end. Arguments: `python` or `command`, by which the sweep is started, its
file, a store, which by Python may be an address, updates after which a node is killed. Prints a JSON report.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# All nodes are here, and use 127.0.0.1 only.
os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}

import ray
from ray.cluster_utils import Cluster
from tiny_sweeps import Recorder

from ostinato.experiments.sweep import cluster_executor
from ostinato.experiments.sweep.cluster_executor import ClusterExecutor
from ostinato.experiments.sweep.files import load_sweep
from ostinato.experiments.sweep.locks import LOCKS
from ostinato.experiments.sweep.ray_cluster import RayCluster
from ostinato.experiments.sweep.remote import RemoteStore, working_folder
from ostinato.experiments.sweep.runs import PlannedRun
from ostinato.experiments.sweep.schedule import run_sweep
from ostinato.experiments.sweep.watch import Event

NODE = {"object_store_memory": 80 * 2**20, "include_dashboard": False, "node_ip_address": "127.0.0.1"}


class KillsNode(Recorder):
    """Kills the node of the first run that has made so many updates."""

    def __init__(self, cluster: Cluster, after: int) -> None:
        super().__init__()
        self.cluster, self.after = cluster, after
        self.killed: dict[str, Any] = {}
        self.runs: list[PlannedRun] = []

    def on_plan(self, runs: Sequence[PlannedRun], n_there: int) -> None:
        self.runs += runs

    def on_event(self, event: Event) -> None:
        super().on_event(event)
        if event.kind == "update" and event.update >= self.after and not self.killed:
            if (node := self.node_of(event.name)) is None:
                return  # it is over already
            self.cluster.remove_node(node, allow_graceful=False)
            self.killed = {"run": event.name, "update": event.update, "at": time.monotonic()}
        if "at" in self.killed and event.kind == "start" and event.name == self.killed["run"]:
            self.killed["seconds until it went on"] = time.monotonic() - self.killed.pop("at")
            self.killed["went on with"] = event.update

    def node_of(self, run: str) -> Any:
        """Return the node that works on a run."""
        directory = next(one.directory for one in self.runs if one.name == run)
        return node_of(self.cluster, directory.parent / LOCKS / f"{directory.name}.lease")


def node_of(cluster: Cluster, lease: Path) -> Any:
    """Return the node of a run's lease: the worker that holds it is a child of the raylet; None: it is over."""
    try:
        worker = next(line.removeprefix("pid=") for line in lease.read_text().splitlines() if line.startswith("pid="))
        raylet = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
    except FileNotFoundError:
        return None
    return next(one for one in cluster.worker_nodes if one.all_processes["raylet"][0].process.pid == raylet)


def by_python(cluster: Cluster, file: Path, store: str, after: int) -> dict[str, Any]:
    """Run the sweep by its function."""
    remote = RemoteStore(store) if "://" in store else None
    cluster_executor._LOOK_EVERY_S = 0.02  # a run is over soon
    watcher, began = KillsNode(cluster, after), time.monotonic()
    executor = ClusterExecutor(RayCluster(cluster.address))
    folder = Path(store) if remote is None else working_folder(store)
    run_sweep(load_sweep(file), folder, executor=executor, watcher=watcher, remote=remote)
    seconds = time.monotonic() - began
    warnings = [event.text for event in watcher.events if event.kind == "warning"]
    return {"seconds": seconds, "results": watcher.results, "warnings": warnings, "killed": watcher.killed}


def by_command(cluster: Cluster, file: Path, place: str, after: int) -> dict[str, Any]:
    """Run the sweep as users do; kill the node of the first run that has saved so many updates."""
    words, store = (
        ["sweep", str(file), "--executor", "ray", "--address", cluster.address, "--store", place],
        Path(place),
    )
    output, killed = store.with_suffix(".txt"), ""
    with output.open("w") as said:
        command = subprocess.Popen([sys.executable, "-m", "ostinato", *words], stdout=said, stderr=subprocess.STDOUT)
        while command.poll() is None and not killed:
            time.sleep(0.02)
            for checkpoint in store.glob(f"*/checkpoints/update-{after:06}"):
                run = checkpoint.parent.parent.name
                if (node := node_of(cluster, store / LOCKS / f"{run}.lease")) is not None:
                    cluster.remove_node(node, allow_graceful=False)
                    killed = run
                    break
    return {"code": command.wait(), "said": output.read_text(), "killed": killed}


def main() -> None:
    way = by_command if sys.argv[1] == "command" else by_python
    file, store, after = Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    cluster = Cluster(initialize_head=True, head_node_args=NODE | {"num_cpus": 0})
    try:
        for _ in range(3):
            cluster.add_node(**NODE, num_cpus=1)
        print(json.dumps(way(cluster, file, store, after)))
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
