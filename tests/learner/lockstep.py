"""Several ranks without Ray: one process a rank, each running the gang's own driver code in lockstep.

`python -m tests.learner.lockstep RANK RANKS PORT CASES.json OUT.json` runs every case in one process, because importing
DeepSpeed takes longer than a case; rank 0 writes the answers.  `run_cases` starts the processes and reads them.

AdamW hides a gradient that is too large or too small by a factor, and so do clipping and Muon: an answer holds the
norms of the gradients beside the losses.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.learner.examples import make_job, make_trajectory

TIMEOUT_S = 280


FIGURES = ("loss/total", "grad_norm/total", "grad_norm/value_head", "grad_norm/kl", "grad_norm/ppo")

Answer = dict[str, list[float]]
"""FIGURES, those that there are, at every step"""


def run_cases(ranks: int, cases: list[dict[str, Any]], folder: Path) -> list[Answer]:
    """What came of every case.  A case: model, steps, episodes and the learner's settings."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    cases_file, out = folder / f"cases-{ranks}.json", folder / f"out-{ranks}.json"
    cases_file.write_text(json.dumps(cases))
    command = [sys.executable, "-m", "tests.learner.lockstep"]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(ranks), str(port), str(cases_file), str(out)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "DS_ACCELERATOR": "cpu", "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"},
        )
        for rank in range(ranks)
    ]
    try:
        for rank, process in enumerate(processes):
            output, _ = process.communicate(timeout=TIMEOUT_S)
            assert process.returncode == 0, f"rank {rank} of {ranks} failed:\n{output[-4000:]}"
    finally:
        for process in processes:
            process.kill()
    return json.loads(out.read_text())


def main(rank: int, ranks: int, port: int, cases: list[dict[str, Any]]) -> list[Answer]:
    import torch.distributed as dist

    from agentrl.config import WeightTriple
    from agentrl.learner.gang import LearnerGang
    from agentrl.learner.rank import Rank

    class Lockstep(LearnerGang):
        """A gang of which this process is one rank; the others run the same calls at the same time."""

        def _start(self) -> None:
            if dist.is_initialized():
                dist.init_process_group = lambda *args, **kwargs: None  # one meeting for all cases
            self.ranks = [None] * ranks
            self.own = Rank(rank, ranks, self.job.student, self.job.learner, self.job.seed)
            self.own.connect("127.0.0.1", port, neighbours=ranks)

        def _call_each(self, method: str, args: Sequence[tuple], timeout_s: float | None = None) -> list[Any]:
            answers: list[Any] = [None] * ranks
            dist.all_gather_object(answers, getattr(self.own, method)(*args[rank]))
            return answers

    weights = WeightTriple(kl=0.7, value=0.2, ppo=0.1)
    results = []
    for case in cases:
        gang = Lockstep(make_job(case["model"], ranks=ranks, **case["learner"]))
        episodes = [make_trajectory(seed, (2 + seed, 3)) for seed in range(case["episodes"])]
        steps = [gang.step(episodes, weights, 0.0) for _ in range(case["steps"])]
        results.append({name: [step[name] for step in steps] for name in FIGURES if name in steps[0]})
    return results


if __name__ == "__main__":
    answers = main(*map(int, sys.argv[1:4]), json.loads(Path(sys.argv[4]).read_text()))
    if sys.argv[1] == "0":
        Path(sys.argv[5]).write_text(json.dumps(answers))
