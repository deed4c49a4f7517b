"""No evaluation task in the training set: by the meaning of the task and by near-duplicate text.

Environments keep the two splits apart by signature; this is the check that they did, on what was actually played.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from agentrl.types import Failure

SHINGLE = 12
"""characters of one shingle; characters and not words, so that Chinese text is covered alike"""


class LeakError(Failure):
    """Held-out tasks were met in training: an evaluation on them means nothing."""


def check_leaks(training: Iterable[str], heldout: Iterable[str]) -> None:
    """Raise LeakError when a task signature of the held-out set is among those of training."""
    shared = sorted(set(training) & set(heldout))
    if shared:
        listed = "; ".join(shared[:3]) + ("; …" if len(shared) > 3 else "")
        raise LeakError(
            f"{len(shared)} held-out task(s) were met in training: {listed}. An environment must place a task in one "
            "split by the hash of its signature (envs.contract.AgentEnv)"
        )


def near_duplicates(
    training: Sequence[str], heldout: Sequence[str], threshold: float = 0.9
) -> list[tuple[int, int, float]]:
    """Pairs (training index, held-out index, similarity) of texts that are nearly the same.

    Similarity is the Jaccard index of the texts' sets of character shingles (Broder 1997), case and spacing ignored;
    exact, by an inverted index over the held-out texts.  Pairs at or above `threshold`, most alike first.
    """
    heldout_shingles = [_shingles(text) for text in heldout]
    where: dict[str, list[int]] = defaultdict(list)
    for j, shingles in enumerate(heldout_shingles):
        for shingle in shingles:
            where[shingle].append(j)
    pairs = []
    for i, text in enumerate(training):
        shingles = _shingles(text)
        common = Counter(j for shingle in shingles for j in where.get(shingle, ()))
        for j, n in common.items():
            similarity = n / (len(shingles) + len(heldout_shingles[j]) - n)
            if similarity >= threshold:
                pairs.append((i, j, similarity))
    return sorted(pairs, key=lambda pair: (-pair[2], pair[0], pair[1]))


def _shingles(text: str) -> set[str]:
    plain = " ".join(text.lower().split())
    return {plain[i : i + SHINGLE] for i in range(max(1, len(plain) - SHINGLE + 1))}
