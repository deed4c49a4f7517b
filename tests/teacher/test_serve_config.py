"""deploy/serve/teacher.yaml: every key is one that Serve knows, since Serve drops the others without a word."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
import yaml
from pydantic import BaseModel, ValidationError
from ray.serve.schema import DeploymentSchema, ServeApplicationSchema, ServeDeploySchema

from agentrl.config import HfTeacher, TeacherService
from agentrl.teacher import app as teacher_app
from agentrl.teacher.app import KeyMissingError, Teacher, TeacherArgs, build, read_keys

FILE = Path(__file__).parents[2] / "deploy" / "serve" / "teacher.yaml"


@pytest.fixture
def config() -> dict:
    return yaml.safe_load(FILE.read_text(encoding="utf-8"))


def unknown_keys(data: object, model: object, where: str = "") -> list[str]:
    """Every key of `data` that pydantic model `model` has no field for, at any depth."""
    models = [m for m in (model, *get_args(model)) if isinstance(m, type) and issubclass(m, BaseModel)]
    if isinstance(data, list):
        [inner] = get_args(model)
        return [key for index, item in enumerate(data) for key in unknown_keys(item, inner, f"{where}[{index}]")]
    if not isinstance(data, dict) or not models:
        return []
    found = []
    for key, value in data.items():
        field = models[0].model_fields.get(key)
        found += [f"{where}.{key}"] if field is None else unknown_keys(value, field.annotation, f"{where}.{key}")
    return found


def test_serve_knows_every_key(config):
    assert unknown_keys(config, ServeDeploySchema) == []
    ServeDeploySchema.model_validate(config)


def test_the_check_finds_a_key_that_serve_would_drop(config):
    config["http_options"]["prot"] = 1
    config["applications"][0]["deployments"][0]["max_ongoing_request"] = 1
    assert unknown_keys(config, ServeDeploySchema) == [
        ".http_options.prot",
        ".applications[0].deployments[0].max_ongoing_request",
    ]
    ServeDeploySchema.model_validate(config)  # Serve itself says nothing


def test_the_service_listens_on_loopback(config):
    assert config["http_options"]["host"] == config["applications"][0]["args"]["host"] == "127.0.0.1"


def test_the_arguments_are_the_builders_and_its_defaults_are_the_jobs(config):
    [application] = config["applications"]
    assert application["import_path"] == f"{teacher_app.__name__}:{build.__name__}"
    args = TeacherArgs.model_validate(application["args"])
    job = TeacherService(scorer=HfTeacher(path=args.scorer.path))
    for name in ("scorer", "host", "api_key_env", "max_request_tokens", "replicas", "cpus_per_replica"):
        assert getattr(args, name) == getattr(job, name)


def test_the_deployment_options_are_those_in_the_code(config):
    [application] = config["applications"]
    [options] = ServeApplicationSchema.model_validate(application).deployments
    deployed = DeploymentSchema.model_validate(
        {"name": Teacher.name}
        | Teacher._deployment_config.model_dump(include={*application["deployments"][0]} - {"name"})
    )
    assert options == deployed


def test_a_misspelt_argument_is_refused():
    with pytest.raises(ValidationError, match="hots"):
        build({"scorer": {"type": "hf", "path": "x"}, "hots": "127.0.0.1"})


def test_a_host_that_others_reach_needs_a_key(monkeypatch):
    monkeypatch.delenv("TEACHER_KEY_OF_TEST", raising=False)
    for host in ("0.0.0.0", "::", "10.1.2.3", "teacher.example"):
        with pytest.raises(KeyMissingError, match="TEACHER_KEY_OF_TEST holds no API key"):
            read_keys(host, "TEACHER_KEY_OF_TEST")
    for host in ("127.0.0.1", "localhost", "::1"):
        assert read_keys(host, "TEACHER_KEY_OF_TEST") == ()
    monkeypatch.setenv("TEACHER_KEY_OF_TEST", " a , ,b")
    assert read_keys("0.0.0.0", "TEACHER_KEY_OF_TEST") == ("a", "b")
