"""The job file: one YAML file says everything about a run, and a run can be repeated from its resolved job alone.

Defaults are the vetted settings.  Unknown keys are refused, and the nearest right one is named.  Imports no torch, ray
or vllm, so that `--help` and `--dry-run` answer at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from agentrl.job_file import JobError, read_job_file
from agentrl.nearest_key import key_path, nearest_key, nearest_name

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
NonNegative = Annotated[float, Field(ge=0.0)]
Betas = Annotated[tuple[Fraction, Fraction], Field(strict=False)]  # YAML has lists and no tuples
LOWEST_TEMPERATURE = 0.01
"""of sampling: vLLM takes anything lower but 0 for this, silently, and the learner would divide by another number"""


class Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


def union(default: str) -> tuple[Any, Any]:
    """Sections that are told apart by their `type`, and the type of one that does not say it."""

    def with_type(data: Any) -> Any:
        return {"type": default, **data} if isinstance(data, dict) else data

    return Field(discriminator="type"), BeforeValidator(with_type)


class Environment(Section):
    id: str = "agentrl/FoodOrder-v0"
    """gymnasium id"""
    modules: list[str] = ["envs"]
    """modules imported to register the id; your own environment's module goes here"""
    language: Literal["en", "zh"] = "en"
    weight: PositiveFloat = 1.0
    """share of the episodes"""
    kwargs: dict[str, Any] = {"compact_tools": True}
    """passed to gymnasium.make"""


class Lora(Section):
    r: PositiveInt = 16
    alpha: PositiveInt = 32
    dropout: Fraction = 0.0
    target_modules: list[str] | Literal["all-linear"] = "all-linear"


class Student(Section):
    path: str
    """a folder with config.json, safetensors and a tokenizer, or `gguf:PACKAGE` for a model in an installed package"""
    dtype: Literal["float32", "bfloat16"] = "float32"
    renderer: str = "auto"
    """`chatml`, a name known to the renderers library, or `auto`"""
    max_model_len: PositiveInt = 2048
    lora: Lora | None = None


class VllmEngine(Section):
    type: Literal["vllm"] = "vllm"
    tensor_parallel: PositiveInt = 1
    max_num_seqs: PositiveInt = 64
    kv_cache_gib: PositiveFloat = 0.5
    """CPU only"""
    gpu_memory_utilization: Fraction = 0.85
    deterministic: bool = False
    """one sequence at a time and no prefix cache: bit-equal repeats on CPU, far slower"""


class TransformersEngine(Section):
    type: Literal["transformers"] = "transformers"


class Rollout(Section):
    engine: Annotated[VllmEngine | TransformersEngine, *union("vllm")] = VllmEngine()
    workers: PositiveInt = 2
    env_actors: PositiveInt = 1
    episodes_per_step: PositiveInt = 32
    temperature: Annotated[float, Field(ge=LOWEST_TEMPERATURE)] = 1.0
    max_turns: PositiveInt | None = None
    """a cap on top of the level's own"""
    max_turns_after_error: PositiveInt | None = None
    """cut a training episode this many turns after the student's first own error: what it writes then teaches little"""
    max_turn_tokens: PositiveInt = 64
    episode_timeout_s: PositiveFloat = 300.0
    max_attempts: PositiveInt = 3
    """attempts at an episode before it is recorded as failed"""
    cpus_per_worker: PositiveFloat = 1.0
    gpus_per_worker: NonNegative = 0.0
    cpus_per_env_actor: PositiveFloat = 1.0


class HfTeacher(Section):
    type: Literal["hf"] = "hf"
    path: str
    dtype: Literal["float32", "bfloat16"] = "float32"
    batch_tokens: PositiveInt = 16384
    """tokens scored in one forward pass, padding included"""


class TeacherService(Section):
    scorer: HfTeacher
    """what answers; further kinds are chosen by `type`"""
    url: str | None = None
    """an already running service; None starts one for the job"""
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """0 picks a free one"""
    api_key_env: str = "AGENTRL_TEACHER_API_KEY"
    """environment variable that holds the bearer key; needed for any host but loopback"""
    replicas: PositiveInt = 1
    cpus_per_replica: PositiveFloat = 1.0
    gpus_per_replica: NonNegative = 0.0
    top_k: PositiveInt = 64
    max_request_tokens: PositiveInt = 262144
    timeout_s: PositiveFloat = 120.0
    """total deadline of one request, retries included"""


class Kl(Section):
    direction: Literal["forward", "reverse", "jsd"] = "forward"
    """forward = KL(teacher‖student), reverse = KL(student‖teacher)"""
    beta: Fraction = 0.5
    """of jsd: M = beta*teacher + (1-beta)*student; 0 < beta < 1"""
    temperature: PositiveFloat = 1.0
    """divides the logits of both; not the sampling temperature"""
    scale_by_temperature_squared: bool = True

    @model_validator(mode="after")
    def _jsd_does_not_vanish(self) -> Kl:
        if self.direction == "jsd" and not 0.0 < self.beta < 1.0:
            raise ValueError(f"beta {self.beta:g} makes jsd vanish: use 0 < beta < 1, or forward or reverse")
        return self


class Value(Section):
    teacher_weight: NonNegative = 1.0
    """of the squared distance to the teacher's value"""
    return_weight: NonNegative = 1.0
    """of the squared distance to the return"""
    lr: PositiveFloat = 1e-3
    """the value head's own learning rate"""


class Ppo(Section):
    clip: PositiveFloat = 0.2
    correction: Literal["decoupled", "bypass"] = "decoupled"
    """decoupled: clip pi/pi_old, times min(pi_old/mu, cap); bypass: clip pi/mu"""
    importance_cap: PositiveFloat = 2.0
    gamma: Fraction = 1.0
    gae_lambda: Fraction = 0.95
    credit: Literal["turn", "token"] = "turn"
    whiten: bool = True


class WeightTriple(Section):
    kl: NonNegative
    value: NonNegative
    ppo: NonNegative


class LossWeights(Section):
    """How the weights of KL, value and PPO move over training, and how far a promotion lifts the KL again."""

    shape: Literal["constant", "linear", "cosine"] = "linear"
    start: WeightTriple = WeightTriple(kl=0.7, value=0.2, ppo=0.1)
    end: WeightTriple = WeightTriple(kl=0.3, value=0.2, ppo=0.5)
    lift_after_promotion: Fraction = 0.5
    """share of the way back to `start` that a promotion takes"""


class Loss(Section):
    kl: Kl = Kl()
    value: Value = Value()
    ppo: Ppo = Ppo()
    weights: LossWeights = LossWeights()
    aggregate: Literal["token-mean", "turn-mean", "trajectory-mean"] = "token-mean"


class AdamW(Section):
    type: Literal["adamw"] = "adamw"
    lr: PositiveFloat = 1e-5
    betas: Betas = (0.9, 0.95)
    weight_decay: NonNegative = 0.0


class Muon(Section):
    """Muon on the matrices of the blocks, AdamW on embeddings, norms and heads."""

    type: Literal["muon"] = "muon"
    lr: PositiveFloat = 6e-3
    momentum: Fraction = 0.95
    adam_lr: PositiveFloat = 1.5e-3
    betas: Betas = (0.9, 0.95)
    weight_decay: NonNegative = 0.0


class Schedule(Section):
    """Learning rate: linear warm-up, constant, then from `decay_from` of the run on a cosine to `final`."""

    warmup_steps: Annotated[int, Field(ge=0)] = 4
    decay_from: Fraction = 0.5
    final: Fraction = 0.1


class Learner(Section):
    ranks: PositiveInt = 1
    zero_stage: Literal[0, 1, 2, 3] = 0
    optimizer: Annotated[AdamW | Muon, *union("adamw")] = AdamW()
    schedule: Schedule = Schedule()
    loss: Loss = Loss()
    minibatches: PositiveInt = 1
    """optimizer steps taken on the episodes of one step"""
    micro_batch_tokens: PositiveInt = 8192
    """tokens of one forward and backward pass on one rank, padding included"""
    clip_grad_norm: PositiveFloat = 1.0
    """of AdamW; Muon's update does not depend on the size of the gradient and is not clipped"""
    gradient_checkpointing: bool = False
    cpus_per_rank: PositiveFloat = 1.0
    gpus_per_rank: NonNegative = 0.0
    parity_tolerance: PositiveFloat | None = None
    """nats between engine and learner after a sync; None: 1e-4 at any position (float32), 0.1 in the mean (bfloat16)"""


class CurriculumBase(Section):
    start_level: PositiveInt = 1
    max_level: PositiveInt | None = None
    rehearsal: Fraction = 0.2
    """share of the episodes played on earlier levels"""
    injected_errors: Fraction = 0.0
    """share of the episodes in which a stated error is forced upon the student early, for it to find the way back"""


class FixedCurriculum(CurriculumBase):
    type: Literal["fixed"] = "fixed"


class LengthCurriculum(CurriculumBase):
    """One level up every `every_steps` steps."""

    type: Literal["length"] = "length"
    every_steps: PositiveInt = 10


class SuccessCurriculum(CurriculumBase):
    """One level up when success over the window and the share of the oracle's turns both hold."""

    type: Literal["success"] = "success"
    window: PositiveInt = 100
    success: Fraction = 0.8
    max_turn_ratio: PositiveFloat = 1.5
    """mean of (turns / the oracle's turns) over the window's successes must not be above it"""


class Evaluation(Section):
    tasks: Annotated[int, Field(ge=1)] = 200
    """held-out tasks a level, played once clean and once after an injected, stated error"""
    levels: Annotated[list[PositiveInt], Field(min_length=1)] | None = None
    """None: the curriculum's start level and the one above"""
    temperature: NonNegative = 0.0
    """0 is greedy"""
    max_turns: PositiveInt | None = None
    confidence: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.95
    every_steps: PositiveInt | None = None
    """evaluations between the first and the last; None: only before and after"""


class Cluster(Section):
    address: str | None = None
    """None: a local Ray started for the job, or the cluster that it was submitted to; `auto`: join a running one"""
    placement_timeout_s: PositiveFloat = 300.0
    pools: bool = False
    """nodes carry the label `pool` (learner, rollout, environment) and roles stay in their own; see ray_cluster.yaml"""


class Job(Section):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    seed: int = 0
    steps: PositiveInt = 50
    """iterations of plan, collect, guide, learn, sync, record, promote"""
    runs_dir: str = "runs"
    checkpoint_every: PositiveInt = 10
    keep_checkpoints: PositiveInt = 2
    environments: Annotated[list[Environment], Field(min_length=1)]
    student: Student
    teacher: TeacherService
    rollout: Rollout = Rollout()
    learner: Learner = Learner()
    curriculum: Annotated[FixedCurriculum | LengthCurriculum | SuccessCurriculum, *union("success")] = (
        SuccessCurriculum()
    )
    evaluation: Evaluation = Evaluation()
    cluster: Cluster = Cluster()

    @model_validator(mode="after")
    def _fits_together(self) -> Job:
        if self.learner.minibatches > self.rollout.episodes_per_step:
            raise ValueError(
                f"learner.minibatches ({self.learner.minibatches}) is more than rollout.episodes_per_step "
                f"({self.rollout.episodes_per_step}): lower the first or raise the second"
            )
        arguments: dict[str, Environment] = {}
        for environment in self.environments:
            first = arguments.setdefault(environment.id, environment)
            if (first.kwargs, first.modules) != (environment.kwargs, environment.modules):
                raise ValueError(
                    f"environments: {environment.id} is listed twice with other kwargs or modules; only its language "
                    "and weight may differ, register another id for a variant"
                )
        loss = self.learner.loss
        if loss.ppo.credit == "token" and loss.ppo.gamma < 1 and loss.value.teacher_weight > 0:
            raise ValueError(
                "learner.loss.ppo.credit=token discounts at every token, a teacher's values at every turn: set "
                "ppo.gamma to 1, ppo.credit to turn or value.teacher_weight to 0"
            )
        top, start = self.curriculum.max_level, self.curriculum.start_level
        if top is not None and top < start:
            raise ValueError(f"curriculum.max_level ({top}) is below curriculum.start_level ({start})")
        if 0.0 < self.evaluation.temperature < LOWEST_TEMPERATURE:
            raise ValueError(f"evaluation.temperature must be 0 (greedy) or at least {LOWEST_TEMPERATURE}")
        if self.rollout.max_turn_tokens >= self.student.max_model_len:
            raise ValueError(
                f"rollout.max_turn_tokens ({self.rollout.max_turn_tokens}) leaves no room for a prompt in "
                f"student.max_model_len ({self.student.max_model_len})"
            )
        return self


def load_job(path: str | Path, overrides: list[str] | tuple[str, ...] = ()) -> Job:
    """Read a job file and apply `key.sub=value` overrides (values are YAML).

    Raises JobError naming the file, the key, what was wrong with it and the nearest right key.
    """
    return parse_job(read_job_file(Path(path), overrides), source=str(path))


def parse_job(data: dict[str, Any], source: str = "job") -> Job:
    """Validate a job given as plain data.  Raises JobError with one line for each thing that is wrong."""
    try:
        return Job.model_validate(data)
    except ValidationError as error:
        lines = [_problem(item) for item in error.errors()]
        raise JobError("\n".join([f"{source} is not a valid job:", *lines])) from error


def _problem(error: ErrorDetails) -> str:
    """One thing that is wrong, in a line."""
    where = key_path(Job, error["loc"]) or "(whole file)"
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        message = f"unknown key; {nearest_key(Job, error['loc'])}"
    elif error["type"] == "union_tag_invalid":
        context = error.get("ctx", {})
        where += ".type"
        known = {tag.strip(" '") for tag in context["expected_tags"].split(",")}
        message = f"unknown type {context['tag']!r}; {nearest_name(context['tag'], known)}"
    return f"  {where}: {message}"


def dump_job(job: Job) -> str:
    """The resolved job as YAML; `load_job` of it gives the same job."""
    return yaml.safe_dump(job.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
