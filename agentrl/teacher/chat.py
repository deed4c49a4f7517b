"""`POST /v1/turn`: the teacher plays one turn, and shows what it thought at every token.  For people with curl.

Training never comes here: it sends token ids, since text that is rendered and encoded again is not what was sampled.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from agentrl.teacher.problems import Problem
from agentrl.teacher.schemas import Limits, TokenChoice, TurnRequest, TurnResponse, TurnToken
from agentrl.teacher.scorer import ScoreItem, Scorer


async def play_turn(scorer: Scorer, request: TurnRequest, limits: Limits) -> TurnResponse:
    """Raises Problem for messages that the chat template refuses and for a prompt that leaves no room for the reply."""
    if request.max_tokens > limits.turn_tokens:
        detail = f"max_tokens is {request.max_tokens}; this service generates up to {limits.turn_tokens}"
        raise Problem(422, "max-tokens-out-of-range", detail, limit=limits.turn_tokens, value=request.max_tokens)
    prompt = render(scorer.tokenizer, request)
    context, total = scorer.identity.context_length, len(prompt) + request.max_tokens
    if total > context:
        detail = (
            f"the prompt's {len(prompt)} tokens and max_tokens {request.max_tokens} are {total}; "
            f"the context length is {context}"
        )
        raise Problem(422, "sequence-too-long", detail, limit=context, value=total)
    sampled = await scorer.sample(prompt, request.max_tokens, request.temperature, request.seed)
    start, end = len(prompt), len(prompt) + len(sampled.token_ids)
    top_k = min(request.top_k, scorer.identity.vocabulary)
    token_ids_T = np.array(prompt + sampled.token_ids, np.int32)
    item = ScoreItem(token_ids_T, np.array([[start, end]], np.int32), None, top_k, temperature=1.0)
    [scores] = await scorer.score([item])

    def choice(position: int, column: int) -> TokenChoice:
        token = int(scores.support_ids_n_k[position, column])
        logprob = float(scores.support_logprobs_n_k[position, column])
        return TokenChoice(id=token, text=scorer.tokenizer.decode([token]), logprob=logprob)

    tokens = []
    for position, token in enumerate(sampled.token_ids):
        column = int(np.flatnonzero(scores.support_ids_n_k[position] == token)[0])
        tokens.append(
            TurnToken(
                **choice(position, column).model_dump(),
                top=[choice(position, rank) for rank in range(top_k)],
                tail_logprob=float(scores.tail_logprobs_n[position]),
            )
        )
    return TurnResponse(
        reply=scorer.tokenizer.decode(sampled.token_ids, skip_special_tokens=True),
        finish="stop" if sampled.finish == "stop" else "length",
        value=None if scores.values_K is None else float(scores.values_K[0]),
        prompt_tokens=len(prompt),
        tokens=tokens,
    )


def render(tokenizer: Any, request: TurnRequest) -> list[int]:
    """The token ids of the dialogue so far, ready for the teacher's reply."""
    if tokenizer.chat_template is None:
        raise Problem(422, "no-chat-template", "this teacher has no chat template; ask POST /v1/score with token ids")
    _refuse_special_tokens(tokenizer, request)
    messages = [m.model_dump(exclude_none=True, exclude_defaults=True) | {"role": m.role} for m in request.messages]
    for message in messages:
        message.setdefault("content", "")
    tools = request.tools or None
    try:
        text = _apply(tokenizer, messages, tools)
        ignored = tools is not None and text == _apply(tokenizer, messages, None)
    except Exception as error:
        detail = f"the chat template refuses these messages: {type(error).__name__}: {str(error)[:200]}"
        raise Problem(422, "chat-template-refuses", detail) from error
    if ignored:
        raise Problem(
            422, "no-tools", "this teacher's chat template has no place for tools; describe them in a message"
        )
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def _apply(tokenizer: Any, messages: list[dict], tools: list[dict] | None) -> str:
    return tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False)


def _refuse_special_tokens(tokenizer: Any, request: TurnRequest) -> None:
    """A special token that somebody typed would be read as one: it could end a message and begin another's."""
    for where, text in _texts(request.model_dump(include={"messages", "tools"}), ""):
        for token in tokenizer.all_special_tokens:
            if token in text:
                detail = f"{where} contains the special token {token!r}; leave it out or spell it apart"
                raise Problem(422, "special-token-in-text", detail)


def _texts(value: Any, where: str) -> Iterator[tuple[str, str]]:
    """Every string in a JSON value with the place of it, names of keys included."""
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, dict):
        for key, item in value.items():
            below = f"{where}/{key}".lstrip("/")
            yield below, key
            yield from _texts(item, below)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, f"{where}/{index}")
