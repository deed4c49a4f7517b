"""The text of a job file as plain data: YAML without surprises, and `key.sub=value` settings on top of it.

For `config`, which says what the keys mean.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from agentrl.types import Failure


class JobError(Failure):
    """A job file that cannot be run: says what was wrong, where, and what to do."""


class _Loader(yaml.SafeLoader):
    """Safe YAML in which 1e-5 is a number, as YAML 1.2 has it, and a key that is there twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} is there twice", key.start_mark
                )
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def read_job_file(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """What the file says, with the overrides applied.  Raises JobError naming the file, or the override."""
    try:
        data = _parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise JobError(f"cannot read the job file {path}: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise JobError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(data, dict):
        raise JobError(f"{path} must be a mapping of keys to values, got {type(data).__name__}")
    for override in overrides:
        _apply(data, override)
    return data


def _parse(text: str) -> Any:
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _apply(data: dict[str, Any], override: str) -> None:
    key, sep, text = override.partition("=")
    parts = key.strip().split(".")
    if not sep or not all(parts):
        raise JobError(f"override {override!r} must look like key.sub=value")
    try:
        value = _parse(text)
    except yaml.YAMLError as error:
        raise JobError(f"override {override!r}: the value is not valid YAML: {error}") from error
    node: Any = data
    for i, part in enumerate(parts[:-1]):
        node = _child(node, part, ".".join(parts[: i + 1]), override)
    if isinstance(node, list):
        node[_index(node, parts[-1], override)] = value
    else:
        node[parts[-1]] = value


def _child(node: Any, part: str, where: str, override: str) -> Any:
    if isinstance(node, list):
        child = node[_index(node, part, override)]
    else:
        child = node.setdefault(part, {})
        if child is None:
            child = node[part] = {}
    if not isinstance(child, dict | list):
        raise JobError(f"override {override!r}: {where} is a plain value and has no keys")
    return child


def _index(node: list, part: str, override: str) -> int:
    if not part.isdigit() or int(part) >= len(node):
        raise JobError(f"override {override!r}: {part!r} is not one of the indices 0..{len(node) - 1}")
    return int(part)
