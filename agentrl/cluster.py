"""Ray for a job: connect to it, reserve every actor's place in one step, leave nothing behind.

`train` calls `connect`, inside it `reserve`; `agentrl train --dry-run` calls `bundles` and `totals` alone, which is why
Ray is imported inside the functions.  Which actor is then started where is each role's own business: it takes the
bundle indices of its role from the `Placement`.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import secrets
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agentrl.config import Job
from agentrl.local_ray import has_token, local_ray, use_token_authentication
from agentrl.types import Failure, PlacedRole, Placement

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup

logger = logging.getLogger(__name__)

Bundle = dict[str, float]
Bundles = dict[PlacedRole, list[Bundle]]

#: The curriculum actor computes for milliseconds a step; a share of a CPU keeps its place counted.
CURRICULUM_CPUS = 0.1

#: With `cluster.pools`, the label `pool` of the nodes that a role's bundles ask for.  Serve places the teacher; the
#: curriculum fits anywhere.
POOLS: dict[PlacedRole, str] = {"learner": "learner", "rollout": "rollout", "environment": "environment"}

#: A local cluster cannot grow: whatever found no place by then, on however busy cores, never will.
LOCAL_PATIENCE_S = 60.0


class PlacementError(Failure):
    """The cluster has no room for the job: says which bundles are missing and what the cluster has."""


class ClusterError(Failure):
    """Ray could not be reached: says which cluster was meant and what to do."""


def bundles(job: Job) -> Bundles:
    """The CPUs and GPUs of every actor of the job, one bundle an actor, by role."""
    rollout, learner, teacher = job.rollout, job.learner, job.teacher
    placed: Bundles = {
        "learner": [_bundle(learner.cpus_per_rank, learner.gpus_per_rank)] * learner.ranks,
        "rollout": [_bundle(rollout.cpus_per_worker, rollout.gpus_per_worker)] * rollout.workers,
        "environment": [_bundle(rollout.cpus_per_env_actor)] * rollout.env_actors,
        "teacher": [_bundle(teacher.cpus_per_replica, teacher.gpus_per_replica)] * teacher.replicas,
        "curriculum": [_bundle(CURRICULUM_CPUS)],
    }
    if teacher.url is not None:
        placed["teacher"] = []
    return placed


def totals(job: Job) -> Bundle:
    """CPUs and GPUs of the whole job."""
    total: Counter[str] = Counter()
    for role in bundles(job).values():
        for bundle in role:
            total.update(bundle)
    return {name: round(amount, 6) for name, amount in total.items()}


def describe(job: Job) -> str:
    """What `reserve` will ask for, in a table for people."""
    rows = [
        f"  {role:<12}{len(items):>4} × {_resources(items[0])}" if items else f"  {role:<12}   none, it runs elsewhere"
        for role, items in bundles(job).items()
    ]
    return "\n".join(
        ["reserved in one step, packed on as few nodes as possible:", *rows, f"  in all:    {_resources(totals(job))}"]
    )


@contextmanager
def connect(job: Job) -> Iterator[bool]:
    """Connect to the job's Ray and yield whether it is the job's own and ends with it.

    A Ray that this process is already connected to is used and left up.  Otherwise the job joins `cluster.address`, or
    the cluster that it was submitted to (RAY_ADDRESS), or starts a local one on loopback with token authentication and
    as many logical CPUs as the job needs; on leaving, a local one is stopped with every process that descends from it.

    Raises ClusterError when there is no cluster at the address or it refuses the token.
    """
    import ray

    if ray.is_initialized():
        yield False
        return
    address = job.cluster.address or os.environ.get("RAY_ADDRESS")
    if address:
        try:
            _join(address)
            yield False
        finally:
            ray.shutdown()
        return
    with local_ray(num_cpus=max(os.cpu_count() or 1, math.ceil(totals(job)["CPU"]))):
        yield True


@contextmanager
def reserve(job: Job) -> Iterator[Placement]:
    """Reserve the place of every actor in one step; on leaving, Ray kills the actors in it and frees the place.

    Serve places the teacher's replicas itself, so their place is reserved with the rest, to know that it exists, and
    handed back last.  Raises PlacementError after `cluster.placement_timeout_s`.
    """
    from ray.util.placement_group import placement_group, remove_placement_group

    placed = bundles(job)
    teacher: Bundles = {"teacher": placed.pop("teacher")}
    joined = job.cluster.address or os.environ.get("RAY_ADDRESS")
    timeout_s = job.cluster.placement_timeout_s if joined else min(job.cluster.placement_timeout_s, LOCAL_PATIENCE_S)
    started = time.monotonic()
    groups: list[PlacementGroup] = []
    try:
        for part in (placed, teacher):
            wanted = [bundle for items in part.values() for bundle in items]
            if not wanted:
                continue
            pools = [_pool(job, role) for role, items in part.items() for _ in items]
            name = f"{job.name}-{secrets.token_hex(3)}"
            # PACK keeps the learner's ranks, which come first, on as few nodes as there is room for.
            groups.append(placement_group(wanted, strategy="PACK", name=name, bundle_label_selector=pools))
            if not groups[-1].wait(timeout_seconds=max(0.0, started + timeout_s - time.monotonic())):
                raise PlacementError(_no_room(job, part, time.monotonic() - started))
        for handed_back in groups[1:]:
            remove_placement_group(handed_back)
            groups.remove(handed_back)
        yield Placement(group=groups[0], indices=_indices(placed))
    finally:
        for group in groups:
            remove_placement_group(group)


def _bundle(cpus: float, gpus: float = 0.0) -> Bundle:
    return {"CPU": cpus, "GPU": gpus} if gpus else {"CPU": cpus}


def _pool(job: Job, role: PlacedRole) -> dict[str, str]:
    return {"pool": POOLS[role]} if job.cluster.pools and role in POOLS else {}


def _indices(placed: Bundles) -> dict[PlacedRole, list[int]]:
    """Bundles of a group are numbered in the order in which they were asked for."""
    numbers = itertools.count()
    indices: dict[PlacedRole, list[int]] = {role: [next(numbers) for _ in items] for role, items in placed.items()}
    return {**indices, "teacher": []}


def _join(address: str) -> None:
    import ray
    from ray.exceptions import AuthenticationError

    if has_token():  # Ray itself turns authentication on for a new cluster, and not for one that is joined
        use_token_authentication()
    try:
        ray.init(address=address, log_to_driver=True, logging_level=logging.WARNING)
    except (ConnectionError, RuntimeError, AuthenticationError) as error:
        raise ClusterError(
            f"cannot join the Ray cluster at {address!r}: {error}\n"
            "Check that it runs (`ray status`), and that RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH (or "
            "RAY_AUTH_TOKEN) name its token; leave cluster.address empty and RAY_ADDRESS unset for a local one."
        ) from error


def missing(placed: Bundles, free: list[Bundle]) -> dict[PlacedRole, int]:
    """How many bundles of each role find no node, the largest placed first.  `free` holds one entry a node."""
    nodes = [dict(node) for node in free]
    asked: list[tuple[PlacedRole, Bundle]] = [(role, bundle) for role, items in placed.items() for bundle in items]
    lost: dict[PlacedRole, int] = {}
    for role, bundle in sorted(asked, key=lambda item: (-item[1].get("GPU", 0), -item[1]["CPU"])):
        node = next((n for n in nodes if all(n.get(name, 0) >= need for name, need in bundle.items())), None)
        if node is None:
            lost[role] = lost.get(role, 0) + 1
            continue
        for name, need in bundle.items():
            node[name] -= need
    return lost


def _no_room(job: Job, placed: Bundles, waited_s: float) -> str:
    import ray
    from ray._private.state import available_resources_per_node

    # A pool is one more resource, of which its nodes have no end and the others nothing.
    pool = {node["NodeID"]: node["Labels"].get("pool") for node in ray.nodes()}
    free = [node | {f"pool {pool.get(name)}": math.inf} for name, node in available_resources_per_node().items()]
    asked: Bundles = {
        role: [bundle | {f"pool {name}": 1.0 for name in _pool(job, role).values()} for bundle in items]
        for role, items in placed.items()
    }
    lines = [f"no room for the job {job.name!r} after {waited_s:.0f} s of waiting for its placement groups:"]
    for role, count in missing(asked, free).items():
        lines.append(f"  {role}: {count} of {len(asked[role])} bundles of {_resources(asked[role][0])} have no node")
    lines.append(f"  the job needs {_resources(totals(job))} in all; free now, by node:")
    lines += [f"    {_resources(node)}" for node in free] or ["    (no node)"]
    lines.append(
        "Lower rollout.workers, rollout.env_actors, learner.ranks or teacher.replicas (or cpus_per_* and gpus_per_* "
        "beside them), add nodes, or raise cluster.placement_timeout_s if nodes are on their way."
    )
    return "\n".join(lines)


def _resources(bundle: Bundle) -> str:
    amounts = [f"{bundle[name]:g} {name}" for name in ("CPU", "GPU") if name in bundle]
    pools = [f"in {name}" for name in bundle if name.startswith("pool ") and name != "pool None"]
    return ", ".join(amounts + pools) or "nothing"
