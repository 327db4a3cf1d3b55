"""Trains the tokenizer of `make demo-finetune` on demo text and writes tokenizer/ beside this file.

python configs/demo_finetune/make_tokenizer.py
"""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from dynapipe_hpc.data.demo_corpus import demo_chats, demo_samples

FOLDER = Path(__file__).parent / "tokenizer"
START, END, N_TOKENS = "<|im_start|>", "<|im_end|>", 512
TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['role'] == 'assistant' %}
{%- generation %}{{- message['content'] + '<|im_end|>' }}{%- endgeneration %}
{%- else %}
{{- message['content'] + '<|im_end|>' }}
{%- endif %}
{{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def main() -> None:
    """Writes the tokenizer, its chat template, and the token at which answers end."""
    texts = [f"{s['inputs']} {s['targets']}" for s in demo_samples(4000, seed=1, max_bytes=512)]
    texts += [
        f"{message['role']}\n{message['content']}"
        for chat in demo_chats(1000, seed=2)
        for message in chat["messages"]
    ]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=N_TOKENS,
        special_tokens=[START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    FOLDER.mkdir(exist_ok=True)
    tokenizer.save(str(FOLDER / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "chat_template": TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    (FOLDER / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    ids = dict.fromkeys(
        ("bos_token_id", "eos_token_id", "pad_token_id"), tokenizer.token_to_id(END)
    )
    (FOLDER / "generation_config.json").write_text(json.dumps(ids, indent=2) + "\n")


if __name__ == "__main__":
    main()
