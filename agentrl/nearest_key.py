"""Places in a pydantic model, named for people, and which key was probably meant by one that is not there."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel

Location = Sequence[int | str]
"""pydantic's `loc`: keys and indices, and below a union the `type` of the section that was chosen"""


def key_path(model: type[BaseModel], location: Location) -> str:
    """`location` as it is written in a file: `rollout.engine.max_num_seqs`, without the `type` of a union."""
    annotation: Any = model
    keys = []
    for part in location:
        if not _of_type(annotation, part):
            keys.append(str(part))
        annotation = _below(annotation, part)
    return ".".join(keys)


def nearest_key(model: type[BaseModel], location: Location) -> str:
    """A hint for the unknown key at `location`: where it does exist, else the nearest one there, else all there."""
    key = str(location[-1])
    if places := sorted(set(_places(model, key))):
        return f"there is {' and '.join(places)}"
    annotation: Any = model
    for part in location[:-1]:
        annotation = _below(annotation, part)
    return nearest_name(key, {name for section in _models(annotation) for name in section.model_fields})


def nearest_name(name: str, known: set[str]) -> str:
    """The nearest of the known names, all of them where none is near."""
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(sorted(known))}"


def _places(annotation: Any, key: str, prefix: str = "") -> Iterator[str]:
    """The paths below `annotation` that end in `key`, with the `type` that has it where others of a union lack it."""
    models = _models(annotation)
    for model in models:
        for name, field in model.model_fields.items():
            everywhere = all(name in other.model_fields for other in models)
            if name == key:
                yield prefix + (name if everywhere else f"{name} ({prefix}type={model.model_fields['type'].default})")
            listed = getattr(field.annotation, "__origin__", None) is list
            yield from _places(field.annotation, key, f"{prefix}{name}.0." if listed else f"{prefix}{name}.")


def _below(annotation: Any, part: int | str) -> Any:
    """What stands below `part`: an index, the `type` of a union, or a key."""
    if isinstance(part, int):
        return annotation
    if chosen := _of_type(annotation, part):
        return chosen
    models = _models(annotation)
    return next((model.model_fields[part].annotation for model in models if part in model.model_fields), None)


def _of_type(annotation: Any, part: int | str) -> type[BaseModel] | None:
    """The section of a union whose `type` is `part`."""
    models = _models(annotation)
    if len(models) < 2:
        return None
    return next((m for m in models if "type" in m.model_fields and m.model_fields["type"].default == part), None)


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Every model inside an annotation (unions, lists, Annotated)."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in getattr(annotation, "__args__", ()) for model in _models(inner)]
