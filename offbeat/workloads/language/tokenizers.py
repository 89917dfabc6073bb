"""Tokenizers trained from the data, for models that are made on the spot, and what every tokenizer must have."""

import string
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from offbeat.config.language import MadeModelConfig
from offbeat.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, END, UNKNOWN = "<pad>", "<end>", "<unknown>"
SPECIAL = (PAD, END, UNKNOWN)


def train_tokenizer(texts: Iterable[str], config: MadeModelConfig) -> "PreTrainedTokenizerFast":
    """A tokenizer of characters, or byte-level BPE of at most `vocabulary_size` tokens; equal for equal texts."""
    from transformers import PreTrainedTokenizerFast

    made = _of_characters(texts) if config.tokenizer == "characters" else _bpe(texts, config.vocabulary_size)
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        padding_side="left",
        model_max_length=config.max_length,
        clean_up_tokenization_spaces=False,
    )


def with_pad(tokenizer: Any) -> Any:
    """The tokenizer with a pad token, which never counts, so that any will do; raises ConfigError where none is."""
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    if tokenizer.pad_token_id is None:
        raise ConfigError("the tokenizer has neither a pad, an end nor an unknown token; add one of them")
    return tokenizer


def _of_characters(texts: Iterable[str]) -> Tokenizer:
    # The printable ones of ASCII are there whatever the data holds, so that rewards may ask for any format.
    found = set(string.printable).union(*map(set, texts))
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *sorted(found)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def _bpe(texts: Iterable[str], vocabulary_size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
