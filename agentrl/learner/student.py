"""The student as a Hugging Face model: loading it, giving it LoRA, and taking its whole weights out again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from agentrl.config import Student

Gather = Callable[[list[nn.Parameter]], AbstractContextManager[None]]

#: The name that peft files our adapter's tensors under.
ADAPTER = "default"


def quiet() -> None:
    """Keep progress bars out of the driver's terminal."""
    transformers_logging.disable_progress_bar()


def load_student(student: Student, seed: int) -> Any:
    """The model of the folder `student.path` in its dtype, ready to train; with `student.lora`, only the adapter is.

    Adapters start from `seed` on every rank alike.
    """
    model = AutoModelForCausalLM.from_pretrained(
        student.path, dtype=getattr(torch, student.dtype), attn_implementation="sdpa", local_files_only=True
    )
    if student.lora is not None:
        from peft import LoraConfig, inject_adapter_in_model

        config = LoraConfig(
            r=student.lora.r,
            lora_alpha=student.lora.alpha,
            lora_dropout=student.lora.dropout,
            target_modules=student.lora.target_modules,
            task_type="CAUSAL_LM",
        )
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = inject_adapter_in_model(config, model, adapter_name=ADAPTER)
    return model


@torch.no_grad()
def full_weights(model: nn.Module, gather: Gather, keep: bool = True) -> dict[str, Tensor]:
    """Every parameter and persistent buffer under the name its folder has it by, as a copy in CPU memory.

    One module's own tensors are gathered at a time, and copied before the gather closes; with `keep` False a rank only
    takes part in gathering.  LoRA is merged into the copies (W + scale B A); the model itself is left as it is.
    A tied output layer has no entry of its own, as in the folder.
    """
    from peft.tuners.lora import LoraLayer

    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    inside: set[str] = set()
    for prefix, module in model.named_modules():
        if any(prefix == name or prefix.startswith(f"{name}.") for name in inside):
            continue
        if isinstance(module, LoraLayer):
            inside.add(prefix)
            own = dict(module.named_parameters())
            with gather(list(own.values())):
                if keep:
                    base = cast(nn.Linear, module.get_base_layer())
                    merged = base.weight.float() + module.get_delta_weight(ADAPTER).float()
                    tensors[f"{prefix}.weight"] = _copy(merged.to(base.weight.dtype))
                    if base.bias is not None:
                        tensors[f"{prefix}.bias"] = _copy(base.bias)
            continue
        parameters = {name: p for name, p in module.named_parameters(recurse=False) if id(p) not in seen}
        seen.update(id(p) for p in parameters.values())
        if not parameters and not module._buffers:
            continue
        with gather(list(parameters.values())):
            if keep:
                for name, parameter in parameters.items():
                    tensors[f"{prefix}.{name}" if prefix else name] = _copy(parameter)
        if keep:
            for name, buffer in module.named_buffers(recurse=False):
                if name not in module._non_persistent_buffers_set:
                    tensors[f"{prefix}.{name}" if prefix else name] = _copy(buffer)
    return tensors


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()
