"""All that the learner knows of DeepSpeed: its configuration, its engine, its checkpoints, its gathered weights.

Every rank calls every function here at the same time: they contain collectives.  What DeepSpeed decides and we undo or
avoid is written where it happens.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointEngine
from deepspeed.runtime.fp16.loss_scaler import LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address
from torch import nn

from agentrl.config import Learner, Muon

#: A deepspeed.DeepSpeedEngine, whose attributes DeepSpeed types as unions of all that they could be.
Engine = Any

CHECKPOINT_TAG = "engine"


def ds_config(learner: Learner, dtype: str) -> dict[str, Any]:
    """DeepSpeed's configuration of a job's learner.

    bfloat16 needs an fp32 master copy, which DeepSpeed keeps in its ZeRO optimizers; below stage 2 its bf16 wrappers
    flatten the weights and would turn Muon into SGD.  So bf16 at stage 0 or 1 runs as stage 2: the same arithmetic.
    Accumulation steps are 1 and the boundary is set by hand, since the number of micro-batches changes from step to
    step; the loss is therefore not divided by it.
    Muon is not clipped: its update does not depend on the size of the gradient, and ZeRO 1 to 3 would clip the
    orthogonalised update instead of the gradient, another optimizer than at stage 0.
    """
    bf16 = dtype == "bfloat16"
    muon = isinstance(learner.optimizer, Muon)
    stage = max(learner.zero_stage, 2) if bf16 else learner.zero_stage
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "steps_per_print": 10**9,
        "gradient_clipping": 0.0 if muon else learner.clip_grad_norm,
        "bf16": {"enabled": bf16},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        "zero_optimization": {
            "stage": stage,
            # Muon gathers whole gradients; ZeRO-3 refuses it together with scattered ones.
            "reduce_scatter": not muon,
        },
        "zero_allow_untested_optimizer": True,
        "optimizer": _optimizer_config(learner),
    }


def _optimizer_config(learner: Learner) -> dict[str, Any]:
    # torch's AdamW everywhere: DeepSpeed's own compiles C++ at its first use.
    optimizer = learner.optimizer
    if isinstance(optimizer, Muon):
        return {
            "type": "Muon",
            "params": {
                "muon_lr": optimizer.lr,
                "adam_lr": optimizer.adam_lr,
                "momentum": optimizer.momentum,
                "betas": list(optimizer.betas),
                "weight_decay": optimizer.weight_decay,
                "torch_adam": True,
            },
        }
    return {
        "type": "AdamW",
        "params": {
            "lr": optimizer.lr,
            "betas": list(optimizer.betas),
            "weight_decay": optimizer.weight_decay,
            "torch_adam": True,
        },
    }


def make_engine(module: nn.Module, learner: Learner, dtype: str) -> Engine:
    """Wrap the module; torch.distributed must be initialised.  Only parameters that require gradients are optimised."""
    # DeepSpeed's shared-memory collectives on CPU are compiled at the first start, and a start that is cut short leaves
    # a lock on which every later one waits for ever.  gloo needs no compiler.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    settings: dict[str, Any] = {"model_parameters": trained, "config": ds_config(learner, dtype)}
    engine: Engine = deepspeed.initialize(model=module, **settings)[0]
    engine.checkpoint_engine = SafeCheckpointEngine()
    return engine


def set_lr(engine: Engine, learner: Learner, factor: float) -> float:
    """Set every group's learning rate to its configured one times `factor`; returns that of the first group."""
    optimizer = learner.optimizer
    for group in engine.optimizer.param_groups:
        base = optimizer.lr
        if isinstance(optimizer, Muon) and not group["use_muon"]:
            base = optimizer.adam_lr
        group["lr"] = base * factor
    return optimizer.lr * factor


def gradient_norm(engine: Engine) -> float | None:
    """Norm of the gradient of all parameters, before clipping; to be called before the engine's step.

    None where DeepSpeed has divided the gradients; see `gradient_norm_after`.
    """
    if engine.zero_optimization():
        return None
    squares = [p.grad.float().square().sum() for p in engine.module.parameters() if p.grad is not None]
    return float(torch.stack(squares).sum().sqrt())


def gradient_norm_after(engine: Engine, learner: Learner) -> float | None:
    """The same norm as DeepSpeed found it in its step.

    None with Muon, where DeepSpeed takes the norm of the orthogonalised update, which is no gradient.
    """
    if isinstance(learner.optimizer, Muon):
        return None
    norm = engine.get_global_grad_norm()
    return None if norm is None else float(norm)


@contextmanager
def gathered(parameters: list[nn.Parameter]) -> Iterator[None]:
    """The whole of these parameters, on every rank, to read; outside of ZeRO-3 nothing needs to be done."""
    divided = [parameter for parameter in parameters if hasattr(parameter, "ds_id")]
    with deepspeed.zero.GatheredParameters(divided, enabled=bool(divided)):
        yield


def use_outside_owner(user: nn.Module, parameter: nn.Parameter) -> None:
    """Tell ZeRO-3 that `user` reads a parameter that another module owns."""
    if hasattr(parameter, "ds_id"):
        deepspeed.zero.register_external_parameter(user, parameter)


def save(engine: Engine, directory: Path) -> None:
    """Trained weights and optimizer state of this rank (frozen weights come from the student's folder again)."""
    engine.save_checkpoint(str(directory), tag=CHECKPOINT_TAG, exclude_frozen_parameters=True, save_latest=False)


def load(engine: Engine, directory: Path) -> None:
    """Back to what `save` wrote.  ZeRO-3 needs the same number of ranks as at the save."""
    path, _ = engine.load_checkpoint(str(directory), tag=CHECKPOINT_TAG, load_module_strict=False)
    if path is None:
        raise FileNotFoundError(f"no learner checkpoint in {directory}")


#: What DeepSpeed puts into its files beside tensors and plain data: an enumeration and two records of numbers.
_PLAIN_CLASSES = [ZeroStageEnum, LossScaler, fragment_address]


class SafeCheckpointEngine(CheckpointEngine):
    """DeepSpeed's checkpoint files, read with `weights_only`: a file cannot run code.

    DeepSpeed's own reader unpickles anything.
    """

    def create(self, info: Any) -> None:
        pass

    def save(self, state_dict: Any, path: str) -> None:
        partial = f"{path}.partial"
        torch.save(state_dict, partial)
        os.replace(partial, path)

    def load(self, path: str, map_location: Any = None) -> Any:
        with torch.serialization.safe_globals(_PLAIN_CLASSES):
            return torch.load(path, map_location=map_location, weights_only=True)

    def commit(self, info: Any) -> bool:
        return True
