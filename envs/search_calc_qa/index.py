"""Search over the pages of one knowledge base in one language: BM25 (the `bm25s` library, Lucene's variant).

Subjects are ranked, not pages: whoever finds a subject is shown every page on it, old and new, so that a reader who
sees one version knows of all.  English is cut into words, Chinese into overlapping pairs of characters.
"""

from __future__ import annotations

import re

import bm25s

_RUNS = re.compile(r"[a-z]+|[0-9]{4,}|[\u4e00-\u9fff]+")
_TITLE_WEIGHT = 4  # a title counts as often as if it stood so many times in the text
_MAX_QUERY = 200
_MAX_KEPT = 2_000


def tokenize(text: str) -> list[str]:
    """English words, years, and pairs of Chinese characters (a lone one by itself); no other numbers."""
    tokens: list[str] = []
    for run in _RUNS.findall(text.casefold()):
        if run[0] < "\u4e00" or len(run) == 1:
            tokens.append(run)
        else:
            tokens.extend(run[i : i + 2] for i in range(len(run) - 1))
    return tokens


class SearchIndex:
    """Ranks documents, given as (title, text), for a query.  Answers are kept: the same question is asked often."""

    def __init__(self, documents: list[tuple[str, str]]) -> None:
        tokens = [tokenize(title) * _TITLE_WEIGHT + tokenize(text) for title, text in documents]
        self._bm25 = bm25s.BM25()
        self._bm25.index(tokens, show_progress=False)
        self._vocabulary: dict[str, int] = self._bm25.vocab_dict
        self._kept: dict[tuple[str, int], tuple[int, ...]] = {}

    def search(self, query: str, limit: int) -> tuple[int, ...]:
        """Up to `limit` documents that share a token with `query`, best first, ties in order of documents."""
        key = (query, limit)
        found = self._kept.get(key)
        if found is None:
            found = self._rank(query[:_MAX_QUERY], limit)
            if len(self._kept) < _MAX_KEPT and len(query) <= _MAX_QUERY:
                self._kept[key] = found
        return found

    def _rank(self, query: str, limit: int) -> tuple[int, ...]:
        tokens = [token for token in tokenize(query) if token in self._vocabulary]
        if not tokens:
            return ()
        scores = self._bm25.get_scores(tokens).tolist()
        hits = [number for number, score in enumerate(scores) if score > 0]
        return tuple(sorted(hits, key=lambda number: (-scores[number], number))[:limit])
