"""A job: is there room for it, do student and teacher fit, do scorer and engine say what transformers says?

One model is loaded at a time beside the engine: a job's student as the learner will see it is the yardstick of both.
"""

from __future__ import annotations

import asyncio
import gc
import os
from typing import TYPE_CHECKING, Any

from agentrl.cluster import totals
from agentrl.config import Job, JobError
from agentrl.doctor.check import Check, attempt, fail, ok, warn
from agentrl.models import resolve_models
from agentrl.types import vocabulary_size

if TYPE_CHECKING:
    import torch

#: of each probe prompt: enough to see a wrong weight, and a second's work for a small model on a CPU
PROBE_TOKENS = 256
ENGINE_TIMEOUT_S = 600.0
SELF_KL_TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-3}
"""mean nats a token between a model and itself through the scorer"""


def job_checks(job: Job) -> list[Check]:
    """See the module.  Later checks are left out where an earlier one says that they cannot be made."""
    checks = [_room(job)]
    try:
        job = resolve_models(job)
    except JobError as error:
        return [*checks, fail("models", str(error), "mend the path in the job file")]
    checks.append(attempt("handshake", lambda: _handshake(job), "is it a model that transformers can load?"))
    if checks[-1].status == "fail":
        return checks
    advice = "see the versions above; a model that changes its logits after the output layer cannot be scored"
    checks.append(attempt("self-teacher", lambda: _self_teacher(job), advice))
    advice = "run again with VLLM_LOGGING_LEVEL=INFO to see more, or set rollout.engine.type=transformers"
    checks.append(attempt("engine", lambda: _engine(job), advice))
    return checks


def _room(job: Job) -> Check:
    need = totals(job)
    summary = f"{need['CPU']:g} CPUs and {need.get('GPU', 0):g} GPUs in all"
    if job.cluster.address or os.environ.get("RAY_ADDRESS"):
        return ok("room", f"{summary}, from the Ray cluster that the job joins")
    import torch

    gpus, cores = torch.cuda.device_count(), os.cpu_count() or 1
    if need.get("GPU", 0) > gpus:
        return fail(
            "room",
            f"{summary}; this machine has {gpus} GPUs",
            "submit it to a cluster (ray job submit), or set gpus_per_rank, gpus_per_worker, gpus_per_replica to 0",
        )
    if need["CPU"] > 2 * cores + 2:
        return warn(
            "room", f"{summary}; this machine has {cores} cores", "the actors share cores; fewer would run faster"
        )
    return ok("room", f"{summary}; this machine has {cores} cores")


def _handshake(job: Job) -> Check:
    """Token→id map, special ids, chat template, BOS rule and context length of teacher and student (correctness 10)."""
    from transformers import AutoTokenizer

    from agentrl.teacher.client import HandshakeError, TeacherClient
    from agentrl.teacher.hf_scorer import HfScorer
    from agentrl.teacher.identity import differences, identity_of

    tokenizer = AutoTokenizer.from_pretrained(job.student.path)
    gamma = job.learner.loss.ppo.gamma if job.learner.loss.value.teacher_weight > 0 else None
    student = identity_of(tokenizer, job.student.max_model_len, gamma)
    if job.teacher.url is not None:
        with TeacherClient(job.teacher.url, os.environ.get(job.teacher.api_key_env), job.teacher.timeout_s) as client:
            try:
                teacher = client.handshake(student)
            except HandshakeError as error:
                teacher, found = None, error.differences
            else:
                found = []
    else:
        scorer = HfScorer.load(job.teacher.scorer.path, job.teacher.scorer.dtype, job.teacher.scorer.batch_tokens)
        teacher, found = scorer.identity, differences(scorer.identity, student)
        scorer.close()
    if found or teacher is None:
        advice = "take student and teacher of one family, with one tokenizer and template; lower student.max_model_len"
        return fail("handshake", "; ".join(found), advice)
    values = "no value head" if teacher.value is None else "a value head"
    uncalibrated = teacher.value is not None and not teacher.value.calibrated
    if uncalibrated:
        advice = "its values are left out of the loss; fit value_head/config.json's gamma and scale, and set calibrated"
        return warn("handshake", f"{teacher.name} fits; its value head is not calibrated", advice)
    return ok("handshake", f"{teacher.name} ({teacher.dtype}, {teacher.vocabulary} ids, {values}) fits the student")


def _self_teacher(job: Job) -> Check:
    """The student as its own teacher, through the scorer: KL must be nothing (correctness 11)."""
    import numpy as np
    import torch

    from agentrl.learner.losses import support_kl
    from agentrl.teacher.hf_scorer import HfScorer
    from agentrl.teacher.scorer import ScoreItem

    prompts = _probes(job)
    scorer = HfScorer.load(job.student.path, job.student.dtype, job.teacher.scorer.batch_tokens)
    temperature = job.learner.loss.kl.temperature
    items = [
        ScoreItem(np.array(ids, np.int32), np.array([[1, len(ids)]], np.int32), None, job.teacher.top_k, temperature)
        for ids in prompts
    ]
    scores = asyncio.run(scorer.score(items))
    scorer.close()
    kls = []
    for logits_T_V, score in zip(_student_logits(job, prompts), scores, strict=True):
        log_p_T_V = torch.log_softmax(logits_T_V / temperature, dim=-1)
        ids_n_k = torch.from_numpy(score.support_ids_n_k).long()
        valid_n_k = ids_n_k >= 0
        kls.append(
            support_kl(
                log_p_T_V[:-1].gather(1, ids_n_k.clamp(min=0)),
                torch.from_numpy(score.support_logprobs_n_k),
                torch.from_numpy(score.tail_logprobs_n),
                valid_n_k,
                "forward",
            )
        )
    kl = float(torch.cat(kls).mean())
    tolerance = SELF_KL_TOLERANCE[job.student.dtype]
    said = f"KL of the student to itself through the scorer: {kl:.1e} nats a token (tolerance {tolerance:g})"
    if not abs(kl) <= tolerance:
        return fail("self-teacher", said, "the scorer and transformers disagree: compare versions with the lock")
    return ok("self-teacher", said)


def _engine(job: Job) -> Check:
    """The rollout engine's log-probabilities of the probes against transformers' (correctness 7)."""
    import torch

    from agentrl.parity import TOLERANCE, logprob_gap

    prompts = _probes(job)
    answers = asyncio.run(_engine_logprobs(job, prompts))
    gc.collect()  # vLLM's engine is part of a cycle, and complains when it is collected at the interpreter's end
    wanted = [
        torch.log_softmax(logits_T_V[:-1], dim=-1).gather(1, torch.tensor(ids)[1:, None])[:, 0]
        for logits_T_V, ids in zip(_student_logits(job, prompts), prompts, strict=True)
    ]
    gap = logprob_gap(job.student.dtype, answers, wanted)
    tolerance = job.learner.parity_tolerance or TOLERANCE[job.student.dtype]
    how = "in the mean" if job.student.dtype == "bfloat16" else "at most"
    said = f"{job.rollout.engine.type} and transformers differ by {gap:.1e} nats {how} (tolerance {tolerance:g})"
    if not gap <= tolerance:
        return fail("engine", said, "training would start off-policy: compare versions with the lock, or use float32")
    return ok("engine", said)


async def _engine_logprobs(job: Job, prompts: list[list[int]]) -> list[list[float]]:
    from agentrl.rollout.engine import EngineSettings, make_engine, own_cores

    chat = _renderer(job)
    settings = EngineSettings(
        model_path=job.student.path,
        dtype=job.student.dtype,
        max_model_len=job.student.max_model_len,
        engine=job.rollout.engine,
        stop_token_ids=chat.stop_token_ids,
        vocabulary=vocabulary_size(chat.tokenizer),
        cores=() if job.rollout.gpus_per_worker else own_cores(0, job.rollout.cpus_per_worker),
        gpus=job.rollout.gpus_per_worker,
    )
    async with asyncio.timeout(ENGINE_TIMEOUT_S):
        engine = await make_engine(settings)
        try:
            return [await engine.score(ids) for ids in prompts]
        finally:
            await engine.close()


def _probes(job: Job) -> list[list[int]]:
    """What the loop compares after each weight sync: openings of the job's environments."""
    from agentrl.parity import ParityProbe
    from agentrl.rollout.catalogue import read_catalogue

    return [ids[:PROBE_TOKENS] for ids in ParityProbe(job, read_catalogue(job), _renderer(job)).prompts]


def _renderer(job: Job) -> Any:
    from transformers import AutoTokenizer

    from agentrl.rollout.chat import make_renderer

    return make_renderer(AutoTokenizer.from_pretrained(job.student.path), job.student.renderer)


def _student_logits(job: Job, prompts: list[list[int]]) -> list[torch.Tensor]:
    """float32 logits_T_V of each prompt over the tokenizer's ids, from transformers in the student's dtype."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(job.student.path, dtype=getattr(torch, job.student.dtype)).eval()
    vocabulary = vocabulary_size(AutoTokenizer.from_pretrained(job.student.path))
    with torch.inference_mode():
        return [model(torch.tensor([ids])).logits[0, :, :vocabulary].float() for ids in prompts]
