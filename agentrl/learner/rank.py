"""One rank of the learner: one DeepSpeed engine in one process, made into a Ray actor by `gang`.

A rank does what it is told and decides nothing: it gets micro-batches that are already packed, weighed and dealt.
Every rank is called with the same method at the same time, and takes the same number of micro-steps, since every method
but `address` contains collectives.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
import ray
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from safetensors.torch import save as to_bytes
from torch import Tensor
from transformers import AutoTokenizer

from agentrl.config import Learner, Student, WeightTriple
from agentrl.learner.batch import MicroBatch, collate
from agentrl.learner.module import StudentModule, TensorBatch, ValueHead
from agentrl.learner.schedule import lr_factor
from agentrl.learner.student import full_weights, load_student, quiet
from agentrl.types import tensor_digests, vocabulary_size

#: A collective in which some rank never arrives ends with an error after this long.
COLLECTIVE_TIMEOUT = timedelta(minutes=30)

#: Below the model's folder, in the form that the teacher service reads.
VALUE_HEAD_FOLDER = "value_head"


@dataclass(frozen=True, slots=True)
class Minibatch:
    """One optimizer step of one rank: its micro-batches; None is one without anything to train on."""

    micro_batches: list[MicroBatch | None]


class Rank:
    """Rank `rank` of `ranks`.  Call `connect` on every rank before anything else."""

    def __init__(self, rank: int, ranks: int, student: Student, learner: Learner, seed: int) -> None:
        self.rank, self.ranks = rank, ranks
        self.student, self.learner, self.seed = student, learner, seed
        self.cuda = learner.gpus_per_rank > 0
        self.updates = 0

    def address(self) -> tuple[str, int]:
        """Where this rank can be met by the others: its node's address and a port that is free now."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return ray.util.get_node_ip_address(), probe.getsockname()[1]

    def connect(self, address: str, port: int, neighbours: int) -> None:
        """Meet the other ranks at rank 0's address, load the student and build the engine.

        neighbours: ranks on this node, this one included; on CPU they share its cores.
        """
        quiet()
        if not self.cuda:
            torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // neighbours))
        # All five: DeepSpeed takes a missing one as a sign of MPI.  An actor sees one GPU, so its local rank is 0.
        os.environ.update(
            RANK=str(self.rank),
            WORLD_SIZE=str(self.ranks),
            LOCAL_RANK="0",
            MASTER_ADDR=address,
            MASTER_PORT=str(port),
        )
        dist.init_process_group("nccl" if self.cuda else "gloo", timeout=COLLECTIVE_TIMEOUT)
        from agentrl.learner import deepspeed_engine  # reads the environment at its import

        self.ds = deepspeed_engine
        torch.manual_seed(self.seed + self.rank)
        self.device = torch.device("cuda", 0) if self.cuda else torch.device("cpu")
        self.model = load_student(self.student, self.seed)
        if self.learner.gradient_checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        self.value_head = ValueHead(self.model.config.hidden_size).to(self.device)
        self.value_optimizer = torch.optim.AdamW(
            self.value_head.parameters(), lr=self.learner.loss.value.lr, weight_decay=0.0
        )
        vocabulary = vocabulary_size(AutoTokenizer.from_pretrained(self.student.path, local_files_only=True))
        module = StudentModule(self.model, self.value_head, vocabulary, self.learner.loss)
        self.engine = self.ds.make_engine(module, self.learner, self.student.dtype)
        for head in (module.loss_head, module.score_head):
            self.ds.use_outside_owner(head, self.model.get_output_embeddings().weight)

    # -- scoring -------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def score(self, micro_batches: list[MicroBatch | None]) -> list[tuple[NDArray, NDArray, NDArray]]:
        """(logprobs_N, entropy_N, values_B_T) of each micro-batch; those of an empty one mean nothing."""
        self.engine.eval()
        answers = []
        for micro in micro_batches:
            answers.append(tuple(_numpy(tensor) for tensor in self.engine(self._tensors(micro))))
        return answers

    def _tensors(self, micro: MicroBatch | None) -> TensorBatch:
        batch = collate([]) if micro is None else micro
        return TensorBatch.of(batch, self.device, self.learner.loss.kl.temperature)

    # -- training ------------------------------------------------------------------------------------------------

    def train(self, minibatches: list[Minibatch], weights: WeightTriple, progress: float) -> list[dict[str, float]]:
        """One optimizer step for each mini-batch; this rank's part of the sums to log, one dictionary a mini-batch.

        `grad_norm` and `lr` are the whole gang's.  The gradients of the terms are measured in the first mini-batch.
        """
        self.engine.train()
        return [self._update(mini, weights, progress, measure=not index) for index, mini in enumerate(minibatches)]

    def _update(self, mini: Minibatch, weights: WeightTriple, progress: float, measure: bool) -> dict[str, float]:
        factor = lr_factor(self.learner.schedule, self.updates, progress)
        lr = self.ds.set_lr(self.engine, self.learner, factor)
        sums: dict[str, Tensor] = {}
        last = len(mini.micro_batches) - 1
        for index, micro in enumerate(mini.micro_batches):
            self.engine.set_gradient_accumulation_boundary(index == last)
            loss, stats = self.engine(self._tensors(micro), weights, measure)
            # DeepSpeed averages gradients over ranks; every weight in the loss has its global denominator already.
            self.engine.backward(loss * self.ranks)
            for name, figure in stats.items():
                sums[name] = sums.get(name, 0.0) + figure.double()
        figures = {name: float(figure) for name, figure in sums.items()}
        figures |= {"lr": lr, **self._step_value_head(factor)}
        norm = self.ds.gradient_norm(self.engine)
        self.engine.step()
        norm = self.ds.gradient_norm_after(self.engine, self.learner) if norm is None else norm
        if norm is not None:
            figures["grad_norm"] = norm
        self.updates += 1
        return figures

    def _step_value_head(self, factor: float) -> dict[str, float]:
        """One step on the value head, whose gradients carry the same factor of `ranks` and get the same mean.

        Its learning rate and the norm of its gradient.
        """
        parameters = list(self.value_head.parameters())
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat)
        flat /= self.ranks
        for parameter, piece in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = piece.view_as(parameter).clone()
        lr = self.learner.loss.value.lr * factor
        for group in self.value_optimizer.param_groups:
            group["lr"] = lr
        self.value_optimizer.step()
        self.value_optimizer.zero_grad()
        return {"lr_value": lr, "grad_norm_value": float(flat.norm())}

    # -- weights -------------------------------------------------------------------------------------------------

    def export(self) -> tuple[bytes, dict[str, str]]:
        """On rank 0 the weights as safetensors bytes with their digests; elsewhere nothing."""
        tensors = self._full_weights()
        if self.rank:
            return b"", {}
        data = to_bytes(tensors)
        return data, tensor_digests(data)

    def _full_weights(self) -> dict[str, Tensor]:
        """Hugging Face's names to whole tensors, LoRA merged; only rank 0 keeps them."""
        return full_weights(self.model, self.ds.gathered, keep=self.rank == 0)

    def save_model(self, directory: str) -> None:
        """Rank 0 writes a Hugging Face folder with the tokenizer, and the value head in it."""
        tensors = self._full_weights()
        if self.rank == 0:
            path = Path(directory)
            self.model.config.save_pretrained(path)
            if getattr(self.model, "generation_config", None) is not None:
                self.model.generation_config.save_pretrained(path)
            save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
            # In a folder of its own: vLLM loads every safetensors file beside the configuration.
            head = path / VALUE_HEAD_FOLDER
            head.mkdir()
            save_file(self._value_head_weights(), head / "weights.safetensors")
            about = {"gamma": self.learner.loss.ppo.gamma, "scale": 1.0, "calibrated": False}
            (head / "config.json").write_text(json.dumps(about) + "\n", encoding="utf-8")
        dist.barrier()

    def _value_head_weights(self) -> dict[str, Tensor]:
        return {name: tensor.cpu() for name, tensor in self.value_head.state_dict().items()}

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def save(self, directory: str) -> None:
        """This rank's part of a checkpoint: engine state, value head, random state and the count of updates."""
        path = Path(directory)
        self.ds.save(self.engine, path)
        tensors = {"torch_rng": torch.get_rng_state()}
        if self.cuda:
            tensors["cuda_rng"] = torch.cuda.get_rng_state()
        for name, tensor in self._value_head_weights().items():
            tensors[f"value_head.{name}"] = tensor
        for name, tensor in _optimizer_tensors(self.value_optimizer).items():
            tensors[f"value_optimizer.{name}"] = tensor.cpu()
        save_file(tensors, path / f"rank-{self.rank}.safetensors")
        if self.rank == 0:
            facts = {"ranks": self.ranks, "zero_stage": self.learner.zero_stage, "updates": self.updates}
            (path / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
        dist.barrier()

    def load(self, directory: str) -> None:
        """Back to what `save` wrote.  Raises ValueError when the number of ranks or the ZeRO stage has changed."""
        path = Path(directory)
        facts = json.loads((path / "facts.json").read_text(encoding="utf-8"))
        now = {"ranks": self.ranks, "zero_stage": self.learner.zero_stage}
        if before := {key: facts[key] for key in now if facts[key] != now[key]}:
            raise ValueError(f"the checkpoint {path} was written with {before}, this learner has {now}: use the same")
        self.ds.load(self.engine, path)
        tensors = load_file(path / f"rank-{self.rank}.safetensors")
        self.value_head.load_state_dict(_below(tensors, "value_head."))
        _set_optimizer_tensors(self.value_optimizer, _below(tensors, "value_optimizer."))
        torch.set_rng_state(tensors["torch_rng"])
        if self.cuda:
            torch.cuda.set_rng_state(tensors["cuda_rng"])
        self.updates = facts["updates"]
        dist.barrier()

    def process_id(self) -> int:
        """The operating system's number of this rank's process."""
        return os.getpid()


def _numpy(tensor: Tensor) -> NDArray[np.float32]:
    return tensor.float().cpu().numpy()


def _below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state of an optimizer whose state is all tensors, by `parameter.name`."""
    state = optimizer.state_dict()["state"]
    return {f"{index}.{name}": tensor for index, entry in state.items() for name, tensor in entry.items()}


def _set_optimizer_tensors(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
