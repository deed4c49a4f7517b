"""The learner as the loop sees it: a gang of Ray actors, one a rank, that takes one combined step at a time.

    gang = LearnerGang(job, placement)
    figures = gang.step(trajectories, weights, progress)     # KL + value + PPO, `minibatches` optimizer steps
    snapshot = gang.export_weights()                         # what the engines load
    gang.save(folder); gang.load(folder); gang.restart(); gang.close()

The gang lives and dies as one: when a rank dies or does not answer in time, all of them are killed and GangLost is
raised; `restart` starts them afresh, and the caller loads the last checkpoint.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from agentrl.config import Job, WeightTriple
from agentrl.learner.batch import collate, weigh
from agentrl.learner.figures import step_figures
from agentrl.learner.packing import deal, pack
from agentrl.learner.rank import Minibatch, Rank
from agentrl.learner.rows import Row, build_rows, probe_row
from agentrl.learner.targets import RowScores, set_targets
from agentrl.types import Failure, Placement, PolicyVersion, Trajectory, WeightSnapshot

#: Reading a large model and building its optimizer.
START_TIMEOUT_S = 1800.0
#: One call of the loop: a step, an export, a checkpoint.
CALL_TIMEOUT_S = 3600.0
#: How long the news of a rank's death may take to arrive after another rank has lost its connection to it.
DEATH_NEWS_S = 10.0


class GangLost(Failure):
    """A rank died or did not answer, and the whole gang was killed: `restart` it and load the last checkpoint."""


class LearnerGang:
    """`job.learner.ranks` ranks on the student of `job.student.path`, in the placement's bundles if there is one.

    `version` is the policy version: 0 for the student's folder, one more after each `step` that trained.
    """

    def __init__(
        self,
        job: Job,
        placement: Placement | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
        call_timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        self.job = job
        self.placement = placement
        self.start_timeout_s = start_timeout_s
        self.call_timeout_s = call_timeout_s
        self.ranks: list[Any] = []
        self.version = PolicyVersion(0)
        self._start()

    def _start(self) -> None:
        learner = self.job.learner
        environment = {"DS_ACCELERATOR": "cuda"}
        if not learner.gpus_per_rank:
            # DeepSpeed decorates Muon with torch.compile, which on CPU runs a C++ compiler for every shape.
            environment = {"DS_ACCELERATOR": "cpu", "TORCHDYNAMO_DISABLE": "1", "OMP_WAIT_POLICY": "passive"}
        actor = ray.remote(Rank)
        for rank in range(learner.ranks):
            options: dict[str, Any] = {
                "num_cpus": learner.cpus_per_rank,
                "num_gpus": learner.gpus_per_rank,
                "runtime_env": {"env_vars": environment},
            }
            if self.placement is not None:
                options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                    cast(PlacementGroup, self.placement.group),
                    placement_group_bundle_index=self.placement.indices["learner"][rank],
                )
            start = actor.options(**options)
            self.ranks.append(start.remote(rank, learner.ranks, self.job.student, learner, self.job.seed))
        addresses = self._call("address", timeout_s=self.start_timeout_s)
        nodes = Counter(node for node, _ in addresses)
        self._call_each("connect", [(*addresses[0], nodes[node]) for node, _ in addresses], self.start_timeout_s)

    # -- one step ------------------------------------------------------------------------------------------------

    def step(self, trajectories: Sequence[Trajectory], weights: WeightTriple, progress: float) -> dict[str, float]:
        """Train on the episodes of one step: `job.learner.minibatches` optimizer steps on shuffled episodes.

        progress: share of the run that is done, 0 to 1, for the learning rate.  Advantages, returns and the old
        policy's logprobs are taken once, before the first update.  Episodes that failed are left out; when nothing is
        left to train on, no weight changes and neither does the version.  Gives figures named group/name.
        """
        started = time.monotonic()
        rows = build_rows(trajectories)
        trained = [row for row in rows if len(row.token_ids_N)]
        counted = {
            "learner/episodes": float(sum(t.failure is None for t in trajectories)),
            "learner/failed_episodes": float(sum(t.failure is not None for t in trajectories)),
        }
        if not trained:
            return counted
        scores = self._score(rows)
        figures = set_targets(rows, scores, trajectories, self.job.learner.loss.ppo)
        scored = time.monotonic()
        minibatches = self._minibatches(trained)
        dealt = [self._deal(minibatch) for minibatch in minibatches]
        hands = [[Minibatch(hand[rank]) for hand in dealt] for rank in range(len(self.ranks))]
        answers = self._call_each("train", [(hand, weights, progress) for hand in hands])
        self.version = PolicyVersion(self.version + 1)
        finished = time.monotonic()
        figures |= counted | step_figures(rows, scores, answers)
        tokens = sum(len(row.token_ids_T) for row in trained)
        figures |= {
            "learner/tokens_per_s": tokens / (finished - started),
            "learner/score_s": scored - started,
            "learner/train_s": finished - scored,
        }
        return figures

    def _score(self, rows: Sequence[Row]) -> list[RowScores]:
        groups = pack([len(row.token_ids_T) for row in rows], self.job.learner.micro_batch_tokens, len(self.ranks))
        hands = deal([sum(len(rows[i].token_ids_T) for i in group) for group in groups], len(self.ranks))
        batches = [[None if g is None else collate([rows[i] for i in groups[g]]) for g in hand] for hand in hands]
        answers = self._call_each("score", [(hand,) for hand in batches])
        scores: list[RowScores | None] = [None] * len(rows)
        for hand, answer in zip(hands, answers, strict=True):
            for group, (logprobs_N, entropy_N, values_B_T) in zip(hand, answer, strict=True):
                if group is None:
                    continue
                members = groups[group]
                cuts = np.cumsum([len(rows[i].token_ids_N) for i in members])[:-1]
                parts = zip(members, np.split(logprobs_N, cuts), np.split(entropy_N, cuts), values_B_T, strict=True)
                for index, logprobs, entropy, values_T in parts:
                    scores[index] = RowScores(logprobs, entropy, values_T)
        return [score for score in scores if score is not None]

    def _minibatches(self, rows: Sequence[Row]) -> list[list[Row]]:
        """Shuffle the episodes and divide them; the samples of an episode stay together."""
        episodes = sorted({row.trajectory for row in rows})
        np.random.default_rng([self.job.seed & 0xFFFFFFFF, self.version]).shuffle(episodes)
        parts = np.array_split(np.array(episodes), min(self.job.learner.minibatches, len(episodes)))
        return [[row for row in rows if row.trajectory in set(part.tolist())] for part in parts]

    def _deal(self, rows: list[Row]) -> list[list[Any]]:
        weigh(rows, self.job.learner.loss.aggregate)
        groups = pack([len(row.token_ids_T) for row in rows], self.job.learner.micro_batch_tokens, len(self.ranks))
        hands = deal([sum(len(rows[i].token_ids_T) for i in group) for group in groups], len(self.ranks))
        return [[None if g is None else collate([rows[i] for i in groups[g]]) for g in hand] for hand in hands]

    # -- weights -------------------------------------------------------------------------------------------------

    def export_weights(self) -> WeightSnapshot:
        """The whole weights under Hugging Face's names, LoRA merged.

        Without the value head, and without the second name of a tied output layer.
        """
        self._check_open("export")
        # Two answers of a call, and not a `ray.put` in the rank: the caller then owns the bytes, and they outlive the
        # gang, which a rollout worker that is healed later still asks for.
        calls = [rank.export.options(num_returns=2).remote() for rank in self.ranks]
        digests = self._wait([digests for _, digests in calls], "export", self.call_timeout_s)[0]
        return WeightSnapshot(self.version, calls[0][0], digests)

    def probe_logprobs(self, token_ids: Sequence[Sequence[int]]) -> list[NDArray[np.float32]]:
        """log p(ids[1:]) of each list at temperature 1, to compare with an engine's."""
        return [score.logprobs_N for score in self._score([probe_row(ids) for ids in token_ids])]

    def save_model(self, directory: str | Path) -> None:
        """Write a Hugging Face folder with the tokenizer, LoRA merged, and value_head/weights.safetensors beside it."""
        target = Path(directory)
        partial = _fresh(target)
        self._call("save_model", str(partial))
        for name in TOKENIZER_FILES:
            if (file := Path(self.job.student.path) / name).is_file():
                shutil.copy(file, partial / name)
        _replace(partial, target)

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def save(self, directory: str | Path) -> None:
        """Write weights, optimizer, random state and version into a new folder that appears whole or not at all.

        Every node must see the folder.
        """
        target = Path(directory).absolute()
        partial = _fresh(target)
        self._call("save", str(partial))
        (partial / "version").write_text(str(self.version), encoding="ascii")
        _replace(partial, target)

    def load(self, directory: str | Path) -> None:
        """Back to what `save` wrote; the next step is then the one that an uninterrupted run would have taken."""
        path = Path(directory).absolute()
        if not (path / "version").is_file():
            raise FileNotFoundError(f"{path} holds no learner checkpoint")
        self._call("load", str(path))
        self.version = PolicyVersion(int((path / "version").read_text(encoding="ascii")))

    # -- life and death ------------------------------------------------------------------------------------------

    def restart(self) -> None:
        """Kill what is left of the gang and start it anew from the student's folder; load a checkpoint afterwards."""
        self.close()
        self.version = PolicyVersion(0)
        self._start()

    def close(self) -> None:
        """Kill every rank.  Nothing is saved."""
        for rank in self.ranks:
            ray.kill(rank)
        self.ranks = []

    def _call(self, method: str, *args: Any, timeout_s: float | None = None) -> list[Any]:
        return self._call_each(method, [args] * len(self.ranks), timeout_s)

    def _call_each(self, method: str, args: Sequence[tuple], timeout_s: float | None = None) -> list[Any]:
        self._check_open(method)
        calls = [getattr(rank, method).remote(*own) for rank, own in zip(self.ranks, args, strict=True)]
        return self._wait(calls, method, self.call_timeout_s if timeout_s is None else timeout_s)

    def _check_open(self, method: str) -> None:
        if not self.ranks:
            raise GangLost(f"the learner is closed, so it cannot {method!r}: restart it")

    def _wait(self, calls: list[Any], method: str, timeout_s: float) -> list[Any]:
        """The answers of all ranks.  The first failure ends the wait: the other ranks hang in a collective with it."""
        deadline = time.monotonic() + timeout_s
        waiting = list(calls)
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=1, timeout=max(0.0, deadline - time.monotonic()))
            if not done:
                silent = ", ".join(str(calls.index(call)) for call in waiting)
                self.close()
                raise GangLost(f"learner rank {silent} did not finish {method!r} within {timeout_s:.0f} s")
            try:
                ray.get(done)
            except RayActorError as error:
                self.close()
                raise GangLost(f"learner rank {calls.index(done[0])} died in {method!r}: {error}") from error
            except RayTaskError as error:
                dead = self._dead_among(waiting)
                self.close()
                if dead is not None:
                    raise GangLost(f"learner rank {calls.index(dead)} died in {method!r}: {error}") from error
                error.add_note(f"in {method!r} of learner rank {calls.index(done[0])}")
                raise
        return ray.get(calls)

    @staticmethod
    def _dead_among(calls: list[Any]) -> Any | None:
        """The call of a rank that died, if any: a survivor may report its broken connection first."""
        done, _ = ray.wait(calls, num_returns=len(calls), timeout=DEATH_NEWS_S) if calls else ([], [])
        for call in done:
            try:
                ray.get(call)
            except RayActorError:
                return call
            except RayTaskError:
                continue
        return None


TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)


def _fresh(target: Path) -> Path:
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    return partial


def _replace(partial: Path, target: Path) -> None:
    if target.exists():
        shutil.rmtree(target)
    partial.rename(target)
