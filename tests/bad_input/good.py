"""Good inputs of every kind, small, to make bad ones of."""

import json
from pathlib import Path

from tests.examples.example_runs import write_run
from tests.examples.measured_layers import linear_table
from tests.examples.tokenized import write_samples

from dynapipe_hpc.planner.cost.table.profile_file import write_table

CONFIG = """
[data]
dataset = "data.h5"
max_tokens = 64
tokens_per_batch = 256

[model]
n_layers = 6
hidden_size = 8
n_heads = 2
ffn_size = 32
vocab_size = 50
max_tokens = 64

[cluster]
n_stages = 2
device_memory_bytes = 1_000_000_000

[planner.cost]
kind = "analytic"

[planner.batch]
rule = "dynamic"

[planner.search]
effort = 1000

[training]
iterations = 3
"""
PROFILED = 'extends = "config.toml"\n[planner.cost]\nkind = "profiled"\npath = "table.h5"\n'
LINE = '{"inputs": "ab", "targets": "ba", "task": "swap"}\n'
VOCABULARY = {"a": 0, "b": 1, "ab": 2, "</s>": 3}
TOKENIZER = {
    "version": "1.0",
    "added_tokens": [],
    "model": {"type": "BPE", "vocab": VOCABULARY, "merges": ["a b"]},
}
PROFILES = (
    "tensor_parallel,recompute,layer,microbatch_size,input_tokens,target_tokens,"
    "forward_ms,backward_ms,stored_activation_mb,peak_activation_mb\n"
    + "".join(
        f"1,none,{layer},{rows},{tokens},0,{rows * tokens},{2 * rows * tokens},3,10\n"
        for layer in ("encoder", "postprocess")
        for rows in (1, 2, 4, 8)
        for tokens in (16, 32, 64)
    )
)
PARAMETERS = "tensor_parallel,recompute,layer,parameter_mb\n1,none,encoder,4\n1,none,embedding,5\n"

PREPROCESS = ("preprocess", "in.jsonl", "out.h5", "--workers", "1")
WITH_TOKENIZER = (*PREPROCESS, "--tokenizer", "tokenizer.json")
PLAN = ("plan", "config.toml")
PLAN_PROFILED = ("plan", "profiled.toml")
PLAN_LENGTHS = ("plan", "config.toml", "--lengths", "lengths.json", "--json", "out.json")
INSPECT_DATASET = ("inspect", "data.h5")
INSPECT_TABLE = ("inspect", "table.h5")
PLAN_CSV = ("plan", "config.toml", "--profile", "p.csv")
REPORT = ("report", "run", "-o", "out.html")
TRAIN = (
    *("run", "config.toml", "-o", "trained", "--set", "cluster.n_stages=1"),
    *("--set", "checkpoint.every=3", "--set", "checkpoint.keep_last=1"),
)
GO_ON = (*TRAIN, "--set", "training.iterations=4")


def write_good(folder: Path) -> Path:
    texts = {
        "config.toml": CONFIG,
        "profiled.toml": PROFILED,
        "in.jsonl": 3 * LINE,
        "tokenizer.json": json.dumps(TOKENIZER),
        "lengths.json": json.dumps({"batches": [[8, 16, 4], [12]]}),
        "p.csv": PROFILES,
        "p_parameters.csv": PARAMETERS,
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    tokens = [i % 49 for i in range(40)]
    samples = [(tokens[: 3 * i], [*tokens[:i], 49], "odd" if i % 2 else "even") for i in range(12)]
    write_samples(folder / "data.h5", samples, vocab_size=50)
    write_table(linear_table(), folder / "table.h5")
    write_run(folder / "run", 3, n_traced=1)
    return folder
