"""The nearest known word, for messages about words that are not known."""

import difflib
from collections.abc import Mapping, Sequence

OF_OTHER_TOOLS: Mapping[str, tuple[str, ...]] = {
    # keys of Hugging Face's TrainingArguments and of peft
    "lr": ("learning_rate",),
    "num_train_epochs": ("epochs",),
    "max_steps": ("iterations",),
    "steps": ("iterations",),
    "warmup_steps": ("warmup_iterations",),
    "lr_scheduler_type": ("schedule",),
    "max_grad_norm": ("clip_norm",),
    "r": ("rank",),
    "lora_r": ("rank",),
    "lora_alpha": ("alpha",),
    "target_modules": ("targets",),
    # linear layers as peft names them; docs/lora.md has the table
    "q_proj": ("query", "query_key_value"),
    "k_proj": ("key", "query_key_value"),
    "v_proj": ("value", "query_key_value"),
    "qkv_proj": ("query_key_value", "query"),
    "c_attn": ("query_key_value",),
    "o_proj": ("attention_output",),
    "q": ("query", "query_key_value"),
    "k": ("key", "query_key_value"),
    "v": ("value", "query_key_value"),
    "o": ("attention_output",),
    "c_proj": ("attention_output",),
    "c_fc": ("up",),
    "up_proj": ("up",),
    "gate_proj": ("gate",),
    "down_proj": ("down",),
    "wi": ("up",),
    "wi_0": ("gate", "up"),
    "wi_1": ("up",),
    "wo": ("down",),
    # sizes in config.json
    "n_layer": ("n_layers",),
    "num_hidden_layers": ("n_layers",),
    "n_embd": ("hidden_size",),
    "n_head": ("n_heads",),
    "num_attention_heads": ("n_heads",),
    "num_key_value_heads": ("n_kv_heads",),
    "intermediate_size": ("ffn_size",),
    "max_position_embeddings": ("max_tokens",),
    # parallelism, as Megatron and others name it
    "pipeline_parallel_size": ("n_stages",),
    "tensor_parallel_size": ("n_shards",),
    "data_parallel_size": ("n_replicas",),
    # shapes of records
    "sharegpt": ("messages",),
    "openai": ("messages",),
    "chatml": ("messages",),
    "chat": ("messages",),
    "conversations": ("messages",),
    "completion": ("pairs",),
    "prompt_completion": ("pairs",),
    "instruction": ("alpaca",),
    "pretrain": ("text",),
    "jsonl": ("messages", "pairs"),
}
"""Words of other tools, and what they are called here."""


def did_you_mean(value: object, known: Sequence[object]) -> str:
    """The nearest known word, as the end of a message; empty if none is near."""
    if not isinstance(value, str):
        return ""
    words = [each for each in known if isinstance(each, str)]
    ours = [each for each in OF_OTHER_TOOLS.get(value.lower(), ()) if each in words]
    close = ours or difflib.get_close_matches(value, words, n=1)
    return f"; did you mean '{close[0]}'?" if close else ""
