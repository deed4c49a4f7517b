"""The demo models' tokenizer: byte-level BPE trained on expert dialogues, ChatML, tool-call headers as single tokens.

Words, digits, Chinese characters and runs of punctuation are never merged across, so that a word has the same tokens in
the user's sentence and in a tool call's arguments: a tiny model can copy it.
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP = (
    "system\n", "user\n", "assistant\n",
    "<tool_call>\n", "\n</tool_call>", "<tool_response>\n", "\n</tool_response>",
    "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
    '{"name": "', '", "arguments": {',
)  # fmt: skip
PIECES = Regex(
    r'\{"name": "|", "arguments": \{'
    r"|\w+\([a-z ]*\)(?:, )?"  # a tool's signature in the system message
    r'|(?:"?, )?"[a-z_]+": ?"?'  # a key of a call's arguments
    r"|[A-Za-z_]+(?:-[A-Za-z]+)*|\d|\p{Han}|[^\sA-Za-z\d\p{Han}]+ ?|\s"
)


def train_tokenizer(texts: Iterable[str], vocab_size: int, chat_template: str) -> PreTrainedTokenizerFast:
    """Deterministic for the same texts in the same order."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(PIECES, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(CONTROL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in MARKUP])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=chat_template,
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )
