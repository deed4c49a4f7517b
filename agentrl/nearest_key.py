"""Which key was probably meant: for an unknown key of a pydantic model, the nearest one that exists at its place."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel


def nearest_key(model: type[BaseModel], location: Sequence[int | str]) -> str:
    """A hint for the unknown key at `location` (pydantic's `loc`): the nearest key, else all that are known there."""
    annotation: Any = model
    for part in location[:-1]:
        annotation = _below(annotation, part)
    known = sorted({name for section in _models(annotation) for name in section.model_fields})
    close = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(known)}"


def _below(annotation: Any, part: int | str) -> Any:
    """What stands below `part`: an index, a union's `type` tag (pydantic puts it into the location), or a key."""
    if isinstance(part, int):
        return annotation
    models = _models(annotation)
    for model in models:
        tag = model.model_fields.get("type")
        if tag is not None and tag.default == part:
            return model
    for model in models:
        if part in model.model_fields:
            return model.model_fields[part].annotation
    return None


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Every model inside an annotation (unions, lists, Annotated)."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in getattr(annotation, "__args__", ()) for model in _models(inner)]
