"""Samples of chat records as text, [what is trained] in brackets."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tests.examples.tokenized import sides_of
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from dynapipe_hpc.data.text.chat_template import ChatTemplate
from dynapipe_hpc.data.text.chat_turns import Turns
from dynapipe_hpc.data.text.open_lines import Lines
from dynapipe_hpc.data.text.recipe import Recipe
from dynapipe_hpc.data.text.record_fields import RecordFormat
from dynapipe_hpc.data.text.tokenize_lines import TokenizedLines, tokenize_lines
from dynapipe_hpc.data.text.tokenizers import Tokenizer

Record = dict[str, Any]

CHATML = """\
{%- if tools %}{{- '<tools>' + tools | tojson + '</>' }}{%- endif %}
{%- for m in messages %}
    {{- '<' + m.role + '>' }}
    {%- if m.reasoning_content %}{{- '<think>' + m.reasoning_content + '</think>' }}{%- endif %}
    {{- m.content }}
    {%- for c in m.tool_calls or [] %}{{- '<call>' + c.function | tojson }}{%- endfor %}
    {{- '</>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<assistant>' }}{%- endif %}
"""
"""A template that shows everything."""


def tokenized(
    records: Sequence[Record],
    template: ChatTemplate | str = CHATML,
    turns: Turns = Turns.EACH,
    record_format: RecordFormat = RecordFormat.MESSAGES,
) -> TokenizedLines:
    """Samples of records, as bytes."""
    if isinstance(template, str):
        template = ChatTemplate("t", {"default": template})
    recipe = Recipe(Tokenizer(start_id=None), record_format, template=template, turns=turns)
    lines = [json.dumps(record).encode() for record in records]
    return tokenize_lines(Lines(Path("in.jsonl"), 7, lines), recipe)


def shown(record: Record, *how: Any, **options: Any) -> list[str]:
    """Samples of a record, which must be a good one; ASCII only."""
    made = tokenized([record], *how, **options)
    assert [bad.reason for bad in made.bad] == []
    return [
        _marked(bytes(inputs + targets).decode(), made.block.spans.of_sample(i))
        for i, (inputs, targets) in enumerate(sides_of(made.block))
    ]


def refusal(record: Record, *how: Any, **options: Any) -> str:
    made = tokenized([record], *how, **options)
    assert not made.block.tasks
    [bad] = made.bad
    return bad.describe()


def chat(*contents: str, **fields: Any) -> Record:
    """A conversation of the user and the assistant in turn."""
    roles = ("user", "assistant") * len(contents)
    messages = [
        {"role": role, "content": text} for role, text in zip(roles, contents, strict=False)
    ]
    return {"messages": messages, **fields}


def _marked(text: str, spans: Sequence[tuple[int, int]]) -> str:
    for start, end in reversed(spans):
        text = f"{text[:start]}[{text[start:end]}]{text[end:]}"
    return text


SPECIAL = [
    *("<s>", "</s>", "<|im_start|>", "<|im_end|>"),
    *("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
]
WORDS = [
    *("Hello", " world", "\n", "\n\n", "  ", "é"),
    *("日本", "🙂", "x" * 9, ".", " [INST]", "{{ a }}"),
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
