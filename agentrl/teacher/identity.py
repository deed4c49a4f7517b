"""Who speaks: what teacher and student must agree on before a log-probability of one means anything to the other.

Both sides call `identity_of` on their own tokenizer; `differences` compares the two and says each difference in words.
Token→id maps are compared by digest, over the ids that the tokenizer knows: rows that pad a vocabulary to a round
number are no part of it.  Imports neither torch nor transformers.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from agentrl.types import vocabulary_size

SPECIALS = ("bos", "eos", "pad", "unk")


class TokenIdentity(BaseModel):
    """How text becomes token ids, and how many of them fit."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    vocabulary: int = Field(ge=1, examples=[49152])
    """true size: the highest id that the tokenizer knows, plus one"""
    token_map_sha256: str
    """digest of the token→id map"""
    special_ids: dict[str, int | None] = Field(examples=[{"bos": 1, "eos": 2, "pad": 2, "unk": 0}])
    chat_template_sha256: str | None
    """None: the tokenizer has no chat template"""
    adds_bos: bool
    """whether encoding a text puts the bos token in front of it"""
    context_length: int = Field(ge=1, examples=[8192])
    """tokens; of a teacher what it can read, of a student what it will ask for"""


class ValueCalibration(BaseModel):
    """What a teacher's values are values *of*: returns discounted by `gamma` a turn, rewards multiplied by `scale`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gamma: float | None = Field(default=None, ge=0, le=1, examples=[1.0])
    scale: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    calibrated: bool = False


class StudentIdentity(TokenIdentity):
    """What a student expects of its teacher.  `gamma` None: it does not learn from the teacher's values."""

    gamma: float | None = None
    scale: float = 1.0


class TeacherIdentity(TokenIdentity):
    """What `GET /v1/model` answers."""

    name: str = Field(examples=["SmolLM2-135M-Instruct"])
    weights_sha256: str
    """digest of the weights' files, the value head included"""
    padded_vocabulary: int = Field(examples=[49280])
    """rows of the output layer; those from `vocabulary` on are cut off before the softmax"""
    dtype: str = Field(examples=["bfloat16"])
    value: ValueCalibration | None
    """None: this teacher has no value head"""


def identity_of(tokenizer: Any, context_length: int, gamma: float | None = None, scale: float = 1.0) -> StudentIdentity:
    """The identity of a student that writes with `tokenizer` (transformers) and asks for up to `context_length` tokens.

    `gamma` and `scale` are the discount a turn and the reward scale of its returns; leave `gamma` None when the
    teacher's values are not used.
    """
    return StudentIdentity(**token_fields(tokenizer, context_length), gamma=gamma, scale=scale)


def token_fields(tokenizer: Any, context_length: int) -> dict[str, Any]:
    """The fields of TokenIdentity for a transformers tokenizer."""
    by_id = sorted(tokenizer.get_vocab().items(), key=lambda pair: (pair[1], pair[0]))
    template = tokenizer.chat_template
    bos = tokenizer.bos_token_id
    encoded = tokenizer("a")["input_ids"]
    return {
        "vocabulary": vocabulary_size(tokenizer),
        "token_map_sha256": _digest(by_id),
        "special_ids": {name: getattr(tokenizer, f"{name}_token_id", None) for name in SPECIALS},
        "chat_template_sha256": None if template is None else _digest(template),
        "adds_bos": bos is not None and encoded[:1] == [bos],
        "context_length": context_length,
    }


def differences(teacher: TeacherIdentity, student: StudentIdentity) -> list[str]:
    """Everything in which the two do not fit together, one sentence each; empty when training may start."""
    found = []
    if teacher.token_map_sha256 != student.token_map_sha256:
        found.append(
            f"token→id map: the teacher's has {teacher.vocabulary} ids and digest {teacher.token_map_sha256[:12]}, the "
            f"student's {student.vocabulary} and {student.token_map_sha256[:12]}"
        )
    for name in sorted(teacher.special_ids.keys() | student.special_ids.keys()):
        theirs, ours = teacher.special_ids.get(name), student.special_ids.get(name)
        if theirs != ours:
            found.append(f"special id {name}: the teacher's is {theirs}, the student's {ours}")
    if teacher.chat_template_sha256 != student.chat_template_sha256:
        found.append(
            f"chat template: the teacher's digest is {_short(teacher.chat_template_sha256)}, the student's "
            f"{_short(student.chat_template_sha256)}"
        )
    if teacher.adds_bos != student.adds_bos:
        found.append(f"bos rule: the teacher adds it: {teacher.adds_bos}, the student: {student.adds_bos}")
    if teacher.context_length < student.context_length:
        found.append(
            f"context length: the teacher reads {teacher.context_length} tokens, the student asks for up to "
            f"{student.context_length}"
        )
    value = teacher.value
    if student.gamma is not None and value is not None and value.calibrated:
        if value.gamma is None or not math.isclose(value.gamma, student.gamma, abs_tol=1e-9):
            found.append(f"discount of values: the teacher's is {value.gamma}, the student's {student.gamma}")
        if not math.isclose(value.scale, student.scale, rel_tol=1e-6):
            found.append(f"scale of values: the teacher's is {value.scale}, the student's {student.scale}")
    return found


def _digest(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, ensure_ascii=True, separators=(",", ":")).encode("ascii")).hexdigest()


def _short(digest: str | None) -> str:
    return "none" if digest is None else digest[:12]
