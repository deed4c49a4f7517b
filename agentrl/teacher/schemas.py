"""What goes over the wire, as JSON.  The same questions and answers in binary are in `wire.py`.

Infinity is not JSON: a log-probability of minus infinity (a tail without mass) is `null`.  Supports are ragged lists in
JSON and padded with -1 and -inf in binary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from agentrl.teacher.identity import StudentIdentity, TeacherIdentity, ValueCalibration, identity_of

__all__ = [
    "ChatMessage",
    "Limits",
    "ScoreRequest",
    "ScoreResponse",
    "ScoredTurn",
    "SequenceScores",
    "SequenceToScore",
    "Span",
    "StudentIdentity",
    "TeacherIdentity",
    "TurnRequest",
    "TurnResponse",
    "ValueCalibration",
    "identity_of",
]

TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
Logprob = float | None
#: Below it, logits divided by the temperature leave fp32.
MIN_TEMPERATURE = 0.01
Temperature = Annotated[float, Field(ge=MIN_TEMPERATURE, le=100.0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may ask for.  The vocabulary and the context length come on top, from the model."""

    body_bytes: int = 64 * 2**20
    sequences: int = 4096
    request_tokens: int = 262_144
    support_entries: int = 2**24
    """(positions) x (k + 1 + named ids): what the answer holds at most"""
    turn_tokens: int = 1024
    """tokens that POST /v1/turn may generate"""


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Span(Strict):
    """The tokens of one turn: `token_ids[start:end]`.  The state that it was taken in ends at `start - 1`."""

    start: int = Field(ge=1, le=2**31 - 1)
    end: int = Field(ge=2, le=2**31 - 1)


class SequenceToScore(Strict):
    token_ids: list[TokenId] = Field(min_length=1)
    turns: list[Span] = Field(min_length=1)
    """ascending, not overlapping"""
    support_ids: list[list[TokenId]] | None = None
    """for every token of the turns, in order, ids whose log-probability is wanted too (reverse KL: the student's)"""


class ScoreRequest(Strict):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "sequences": [{"token_ids": [1, 9, 12, 7, 33, 2], "turns": [{"start": 3, "end": 6}]}],
                    "top_k": 2,
                    "temperature": 1.0,
                }
            ]
        }
    )
    sequences: list[SequenceToScore] = Field(min_length=1)
    top_k: int = Field(default=64, ge=0, le=2**31 - 1)
    """likeliest ids a position; 0: only the sampled token and the named ids; the vocabulary's size: everything"""
    temperature: Temperature = 1.0
    """divides the logits before the softmax"""


class ScoredTurn(Strict):
    """One turn of n tokens.  The lists run over its tokens."""

    start: int
    end: int
    value: float | None
    """the teacher's value of the state before the turn; null when it has no value head"""
    support_ids: list[list[int]]
    """the top k by falling probability, then the token itself, then the named ids; each id once"""
    support_logprobs: list[list[Logprob]]
    tail_logprobs: list[Logprob]
    """log of the mass outside of the support; null: none is"""


class SequenceScores(Strict):
    turns: list[ScoredTurn]


class ScoreResponse(Strict):
    sequences: list[SequenceScores]


class ToolFunction(Strict):
    name: str
    arguments: dict[str, Any]
    """an object; a call that did not parse belongs into `content`, as it was written"""


class ChatToolCall(Strict):
    id: str | None = None
    type: Literal["function"] = "function"
    function: ToolFunction


class ChatMessage(Strict):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    tool_calls: list[ChatToolCall] = []
    name: str | None = None
    tool_call_id: str | None = None


class TurnRequest(Strict):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"messages": [{"role": "user", "content": "What is the capital of France?"}], "top_k": 3}]
        }
    )
    messages: list[ChatMessage] = Field(min_length=1, max_length=1024)
    tools: list[dict[str, Any]] | None = Field(default=None, max_length=256)
    max_tokens: int = Field(default=128, ge=1)
    temperature: Annotated[float, Field(ge=0.0, le=100.0, allow_inf_nan=False)] = 0.0
    """of sampling; 0 is greedy.  The log-probabilities in the answer are at temperature 1"""
    top_k: int = Field(default=5, ge=0, le=100)
    seed: int = Field(default=0, ge=0, le=2**31 - 1)

    @field_validator("temperature")
    @classmethod
    def _greedy_or_stable(cls, temperature: float) -> float:
        if 0 < temperature < MIN_TEMPERATURE:
            raise ValueError(f"must be 0 or at least {MIN_TEMPERATURE}")
        return temperature


class TokenChoice(Strict):
    id: int
    text: str
    logprob: Logprob


class TurnToken(TokenChoice):
    top: list[TokenChoice]
    tail_logprob: Logprob


class TurnResponse(Strict):
    reply: str
    finish: Literal["stop", "length"]
    value: float | None
    prompt_tokens: int
    tokens: list[TurnToken]


class HealthResponse(Strict):
    status: Literal["ok"]
