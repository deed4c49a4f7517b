"""Ray for a job: what is counted, what is reserved, what is said when there is no room, what is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import psutil
import pytest

from agentrl.cluster import PlacementError, bundles, missing, reserve, totals
from agentrl.config import Job, parse_job

REPO = Path(__file__).resolve().parent.parent


def job(**changes: Any) -> Job:
    data: dict[str, Any] = {
        "name": "test",
        "environments": [{}],
        "student": {"path": "models/student"},
        "teacher": {"scorer": {"type": "hf", "path": "models/teacher"}},
        "cluster": {"placement_timeout_s": 60.0},
    }
    return parse_job(data | changes)


def test_every_actor_has_one_bundle() -> None:
    placed = bundles(
        job(
            learner={"ranks": 2, "cpus_per_rank": 4, "gpus_per_rank": 1},
            rollout={"workers": 3, "cpus_per_worker": 2, "gpus_per_worker": 1, "env_actors": 2},
        )
    )
    assert placed == {
        "learner": [{"CPU": 4, "GPU": 1}] * 2,
        "rollout": [{"CPU": 2, "GPU": 1}] * 3,
        "environment": [{"CPU": 1}] * 2,
        "teacher": [{"CPU": 1}],
        "curriculum": [{"CPU": 0.1}],
    }


def test_the_totals_are_the_sum_of_the_bundles() -> None:
    assert totals(job(rollout={"workers": 2, "gpus_per_worker": 0.5})) == {"CPU": 5.1, "GPU": 1.0}


def test_a_teacher_that_runs_elsewhere_takes_no_place() -> None:
    teacher = {"scorer": {"type": "hf", "path": "t"}, "url": "http://teacher:8000"}
    assert bundles(job(teacher=teacher))["teacher"] == []


def test_bundles_that_fit_no_node_are_counted_by_role() -> None:
    placed = bundles(job(rollout={"workers": 3, "cpus_per_worker": 4}))
    assert missing(placed, free=[{"CPU": 8.0}, {"CPU": 3.1}]) == {"rollout": 1}
    assert missing(placed, free=[{"CPU": 100.0}]) == {}
    assert missing(placed, free=[]) == {"learner": 1, "rollout": 3, "environment": 1, "teacher": 1, "curriculum": 1}


@pytest.mark.ray
def test_the_whole_job_is_placed_in_one_group(ray_cluster: str) -> None:
    import ray
    from ray.util.placement_group import placement_group_table

    with reserve(job()) as placement:
        assert placement.indices == {
            "learner": [0],
            "rollout": [1, 2],
            "environment": [3],
            "teacher": [],
            "curriculum": [4],
        }
        alive = [g for g in placement_group_table().values() if g["state"] == "CREATED"]
        assert len(alive) == 1
        assert len(alive[0]["bundles"]) == 5
        assert ray.cluster_resources()["CPU"] == 8


@pytest.mark.ray
def test_leaving_the_reservation_kills_its_actors_and_frees_their_place(ray_cluster: str) -> None:
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    @ray.remote(num_cpus=1)
    class Actor:
        def pid(self) -> int:
            return os.getpid()

    with reserve(job()) as placement:
        place = PlacementGroupSchedulingStrategy(placement.group, placement_group_bundle_index=1)
        actor = Actor.options(scheduling_strategy=place).remote()
        process = psutil.Process(ray.get(actor.pid.remote(), timeout=60))
    process.wait(timeout=30)
    with reserve(job()):
        pass


@pytest.mark.ray
def test_a_job_without_room_says_which_bundles_are_missing_and_what_is_free(ray_cluster: str) -> None:
    with (
        pytest.raises(PlacementError) as caught,
        reserve(
            job(
                learner={"ranks": 2, "gpus_per_rank": 1},
                rollout={"workers": 9},
                cluster={"placement_timeout_s": 2.0},
            )
        ),
    ):
        pass
    message = str(caught.value)
    assert "learner: 2 of 2 bundles of 1 CPU, 1 GPU have no node" in message
    assert "rollout: 1 of 9 bundles of 1 CPU have no node" in message
    assert "the job needs 13.1 CPU, 2 GPU in all" in message
    assert message.splitlines()[-2] == "    8 CPU"


POOLS = """
import ray
from ray.cluster_utils import Cluster
from agentrl.cluster import PlacementError, reserve
from agentrl.config import parse_job
from ray.util.placement_group import placement_group_table

def job(ranks):
    return parse_job({
        "name": "pools", "environments": [{}], "student": {"path": "s"},
        "teacher": {"scorer": {"type": "hf", "path": "t"}}, "learner": {"ranks": ranks},
        "cluster": {"pools": True, "placement_timeout_s": 5},
    })

nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
names = ("learner", "rollout", "environment")
pool = {nodes.add_node(num_cpus=4, labels={"pool": name}).node_id: name for name in names}
ray.init(nodes.address, logging_level="ERROR", log_to_driver=False)
with reserve(job(ranks=2)) as placement:
    where = placement_group_table(placement.group)["bundles_to_node_id"]
    print({role: [pool.get(where[i], "any") for i in indices] for role, indices in placement.indices.items()
           if role not in ("teacher", "curriculum")})
try:
    with reserve(job(ranks=5)):
        pass
except PlacementError as error:
    print(str(error).splitlines()[1])
ray.shutdown()
nodes.shutdown()
"""


@pytest.mark.ray
@pytest.mark.slow
def test_with_pools_each_role_stays_on_the_nodes_of_its_pool() -> None:
    command = [sys.executable, "-c", POOLS]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    placed, refused = done.stdout.splitlines()[-2:]
    assert placed == str({"learner": ["learner"] * 2, "rollout": ["rollout"] * 2, "environment": ["environment"]})
    assert refused == "  learner: 1 of 5 bundles of 1 CPU, in pool learner have no node"


SCRIPT = """
import os, subprocess, sys, time
import psutil, ray
from agentrl.cluster import connect, reserve
from agentrl.config import parse_job
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

job = parse_job({
    "name": "local", "environments": [{}], "student": {"path": "s"},
    "teacher": {"scorer": {"type": "hf", "path": "t"}}, "rollout": {"workers": 7},
})

@ray.remote(num_cpus=1)
class Worker:
    def start(self):
        # what vLLM does: an engine process beside the actor, which a killed actor cannot stop
        return os.getpid(), subprocess.Popen(["sleep", "600"]).pid

with connect(job) as own, reserve(job) as placement:
    place = PlacementGroupSchedulingStrategy(placement.group, placement_group_bundle_index=1)
    worker = Worker.options(scheduling_strategy=place).remote()
    pids = ray.get(worker.start.remote(), timeout=60)
    listening = {
        c.laddr.ip.removeprefix("::ffff:")
        for p in psutil.Process().children(recursive=True) for c in p.net_connections("tcp") if c.status == "LISTEN"
    }
    address, cpus = ray.get_runtime_context().gcs_address, ray.cluster_resources()["CPU"]
    print(own, address, cpus, *sorted(listening), os.environ["RAY_AUTH_MODE"])
    tree = psutil.Process().children(recursive=True)
    if sys.argv[1] == "kill":
        ray.kill(worker)
        psutil.Process(pids[1]).wait(timeout=30)
        print("engine gone")
print("left", len(psutil.Process().children(recursive=True)), [p.pid for p in tree if p.is_running()])
"""


def run_local(how: str, home: Path) -> list[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {"HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), how],
        cwd=REPO,
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.mark.ray
@pytest.mark.slow
def test_a_local_cluster_is_on_loopback_with_a_token_and_fits_the_job_and_leaves_no_process(tmp_path: Path) -> None:
    address_line, left = run_local("end", tmp_path)
    own, address, cpus, *listening, mode = address_line.split()
    assert own == "True"
    assert address.startswith("127.0.0.1:")
    assert float(cpus) == max(os.cpu_count() or 1, 11)  # 7 rollout, 1 each of learner, environment, teacher, 0.1
    assert listening == ["127.0.0.1"]
    assert mode == "token"
    assert left == "left 0 []"
    assert not (tmp_path / ".ray" / "auth_token").exists(), "a token in the home folder is demanded by later clusters"


@pytest.mark.ray
@pytest.mark.slow
def test_a_killed_actor_takes_its_engine_process_with_it(tmp_path: Path) -> None:
    assert run_local("kill", tmp_path)[1:] == ["engine gone", "left 0 []"]
