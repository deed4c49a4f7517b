"""Files that no test can run to their end are at least right in every key: cluster files, manifests, jobs, locks."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from agentrl.cluster import POOLS, bundles, totals
from agentrl.config import load_job
from agentrl.doctor.machine import BREAK_THE_CPU_BUILD, read_lock

REPO = Path(__file__).resolve().parent.parent
JOBS = sorted((REPO / "deploy/jobs").glob("*.yaml"))
LOCK = read_lock("".join(path.read_text() for path in (REPO / "requirements").glob("*.lock")))


def manifest(name: str) -> dict[str, Any]:
    return yaml.safe_load((REPO / "deploy/kuberay" / name).read_text())


@pytest.fixture
def ray_up() -> dict[str, Any]:
    return yaml.safe_load((REPO / "ray_cluster.yaml").read_text())


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_every_job_file_is_a_valid_job_named_after_its_file(path: Path) -> None:
    assert load_job(path).name.replace("-", "_") == path.stem


def test_the_gpu_job_resolves_to_placement_groups_with_24_gpus() -> None:
    job = load_job(REPO / "deploy/jobs/qwen_a100.yaml")
    assert {role: len(items) for role, items in bundles(job).items()} == {
        "learner": 8,
        "rollout": 12,
        "environment": 16,
        "teacher": 4,
        "curriculum": 1,
    }
    assert totals(job) == {"CPU": 184.1, "GPU": 24}


def test_the_gpu_job_says_that_it_has_not_run_here() -> None:
    assert "THIS JOB HAS NOT RUN HERE" in (REPO / "deploy/jobs/qwen_a100.yaml").read_text()


def test_ray_itself_accepts_the_cluster_file(ray_up: dict[str, Any]) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(ray_up))


def test_ray_refuses_a_key_that_its_schema_lacks(ray_up: dict[str, Any]) -> None:
    import jsonschema
    from ray.autoscaler._private.util import prepare_config, validate_config

    with pytest.raises(jsonschema.ValidationError, match="target_utilization_fraction"):
        validate_config(prepare_config(ray_up | {"target_utilization_fraction": 0.8}))


def test_the_dashboard_of_ray_up_listens_on_loopback_and_every_start_demands_the_token(ray_up: dict[str, Any]) -> None:
    head, worker = ray_up["head_start_ray_commands"][-1], ray_up["worker_start_ray_commands"][-1]
    assert "--dashboard-host=127.0.0.1" in head
    assert "RAY_AUTH_MODE=token" in head
    assert "RAY_AUTH_MODE=token" in worker
    assert "/home/ubuntu/.ray/auth_token" in ray_up["file_mounts"]


def test_the_gpu_job_fits_the_pools_of_ray_up(ray_up: dict[str, Any]) -> None:
    pools = {
        kind["labels"]["pool"]: {name: amount * kind["max_workers"] for name, amount in kind["resources"].items()}
        for kind in ray_up["available_node_types"].values()
        if "labels" in kind
    }
    assert set(pools) == set(POOLS.values())
    placed = bundles(load_job(REPO / "deploy/jobs/qwen_a100.yaml"))
    # Serve places the teacher wherever GPUs are left: in the rollout pool, since the learner fills its own.
    asked = {
        "learner": placed["learner"],
        "rollout": placed["rollout"] + placed["teacher"],
        "environment": placed["environment"],
    }
    for pool, items in asked.items():
        for name in ("CPU", "GPU"):
            assert sum(item.get(name, 0) for item in items) <= pools[pool].get(name, 0), (pool, name)


@pytest.mark.parametrize(
    "spec",
    [manifest("raycluster.yaml")["spec"], manifest("rayjob.yaml")["spec"]["rayClusterSpec"]],
    ids=["raycluster", "rayjob"],
)
def test_kuberay_manifests_ask_for_the_locked_ray_and_a_token(spec: dict[str, Any]) -> None:
    assert spec["rayVersion"] == LOCK["ray"]
    assert spec["authOptions"] == {"mode": "token"}
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            assert container["resources"]["requests"] == container["resources"]["limits"]
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            assert "/dev/shm" in {mount["mountPath"] for mount in container["volumeMounts"]}


def test_the_ray_job_trains_a_job_file_that_exists_on_nodes_with_its_pools() -> None:
    spec = manifest("rayjob.yaml")["spec"]
    job = load_job(REPO / spec["entrypoint"].removeprefix("agentrl train "))
    groups = spec["rayClusterSpec"]["workerGroupSpecs"]
    assert {group["labels"]["pool"] for group in groups} == set(POOLS.values())
    gpus = sum(
        group["replicas"] * int(container["resources"]["limits"].get("nvidia.com/gpu", 0))
        for group in groups
        for container in group["template"]["spec"]["containers"]
    )
    assert gpus >= totals(job)["GPU"]


def test_what_breaks_the_cpu_build_of_torch_stays_out_of_the_lock() -> None:
    assert not {*BREAK_THE_CPU_BUILD, "triton"} & set(LOCK)
    assert LOCK["torch"].endswith("+cpu")


def test_every_line_of_a_lock_pins_one_release() -> None:
    for path in (REPO / "requirements").glob("*.lock"):
        lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
        assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.+]+", line)] == [], path.name


@pytest.mark.parametrize("extra", ["", "cpu", "dev"])
def test_the_lock_satisfies_what_the_package_asks_for(extra: str) -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    wanted = project["optional-dependencies"][extra] if extra else project["dependencies"]
    wrong = []
    for requirement in map(Requirement, wanted):
        locked = LOCK.get(requirement.name.lower())
        if locked is None or locked not in requirement.specifier:
            wrong.append(f"{requirement}: locked {locked}")
    assert wrong == []


def test_ci_runs_the_checks_and_the_test_command_of_the_readme_and_stops_at_the_first_failure() -> None:
    script = (REPO / ".ci/run").read_text()
    assert "set -euo pipefail" in script
    assert script.splitlines()[-2:] == ["make check", "make test"]


def test_models_and_runs_of_the_gpu_job_lie_where_every_node_sees_them(ray_up: dict[str, Any]) -> None:
    job = load_job(REPO / "deploy/jobs/qwen_a100.yaml")
    for path in (job.student.path, job.teacher.scorer.path, job.runs_dir):
        assert str(path).startswith("/shared/")
    assert any("/shared" in command for command in ray_up["setup_commands"])
    for spec in (manifest("rayjob.yaml")["spec"]["rayClusterSpec"], manifest("raycluster.yaml")["spec"]):
        for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
            for container in group["template"]["spec"]["containers"]:
                mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
                assert {"/shared/models", "/shared/runs"} <= mounts
