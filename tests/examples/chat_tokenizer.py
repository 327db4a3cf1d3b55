"""A tokenizer with a chat template."""

import json
from pathlib import Path

import tokenizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

SPECIAL = [
    *("<s>", "</s>", "<|im_start|>", "<|im_end|>"),
    *("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
]
WORDS = [
    "Hello",
    " world",
    "\n",
    "\n\n",
    "  ",
    "é",
    "日本",
    "🙂",
    "x" * 9,
    ".",
    " [INST]",
    "{{ a }}",
]


def folder_of(folder: Path, template: str) -> Path:
    """A tokenizer as people get it: a byte-level BPE with special tokens and a template."""
    folder.mkdir()
    model = tokenizers.Tokenizer(BPE())
    model.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trainer = BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    model.train_from_iterator([*WORDS, "user assistant system Hello world"] * 9, trainer)
    model.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": {"__type": "AddedToken", "content": "</s>", "special": True},
        "chat_template": template,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
