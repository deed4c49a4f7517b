"""A trajectory as text for people: who said what, and what became of each turn."""

from __future__ import annotations

from agentrl.types import Trajectory


def to_text(trajectory: Trajectory) -> str:
    """The whole dialogue, one message a line or more, each assistant turn with its label and reward parts."""
    spec = trajectory.spec
    end = trajectory.failure or (
        "success" if trajectory.success else "truncated" if trajectory.truncated else "no success"
    )
    lines = [
        f"--- {spec.env} level {spec.level} task {spec.task} ({spec.language}): {end}, {len(trajectory.turns)} turns"
    ]
    lines += [f"{message.role:>9} | {message.content}" for message in trajectory.opening]
    for turn in trajectory.turns:
        parts = " ".join(f"{name} {value:+.3f}" for name, value in turn.reward_parts.items() if value)
        by = "" if turn.author == "student" else f" by {turn.author}"
        lines.append(f"assistant | {turn.text.strip()}")
        lines.append(f"          |   [turn {turn.index}{by}: {turn.label}; reward {turn.reward:+.3f} = {parts or '0'}]")
        lines += [f"{message.role:>9} | {message.content}" for message in turn.observation]
    return "\n".join(line.replace("\n", "\n          | ") for line in lines) + "\n"
