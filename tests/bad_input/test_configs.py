from pathlib import Path

import pytest
from tests.bad_input.good import CONFIG, PLAN
from tests.bad_input.worker import Worker, assert_refused

# Text of config.toml, and what the message has to say.
FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "data is missing"),
    "an open string": (b'[data]\ndataset = "x\n', "not valid TOML.*line 2"),
    "UTF-16": (CONFIG.encode("utf-16"), "not (valid TOML|UTF-8)"),
    "a deep key": (b".".join([b"a"] * 2_000) + b" = 1\n", "unknown key|not valid TOML"),
    "a file that is too large": (b"# a comment\n" * 10_000, "larger than 65,536 bytes"),
    "a long unknown key": (
        CONFIG.encode() + b"k" * 50_000 + b" = 1\n",
        "unknown key 'training.kkk",
    ),
    "an unknown table": (CONFIG.encode() + b"[trainin]\n", "'trainin'; did you mean 'training'"),
    "an unknown key with odd letters": (
        CONFIG.encode() + b'"a\\u001b[2J" = 1\n',
        r"unknown key 'training.a.x1b",
    ),
    "a missing table": (CONFIG.replace("[model]", "[store]").encode(), "model is missing"),
    "extends of a number": (b"extends = 1\n", "extends must be the name of one file, got 1"),
    "extends itself": (b'extends = "config.toml"\n', "extends itself through config.toml"),
    "extends a missing file": (
        b'extends = "none.toml"\n',
        "none.toml: cannot be read: No such file",
    ),
    "extends a long name": (b'extends = "' + b"a" * 5000 + b'"\n', "aaa.*(too long|read)"),
    "extends the terminal": (
        b'extends = "/dev/zero"\n',
        "/dev/zero: cannot be read: is not a regular file",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_bad_file_is_named(worker: Worker, folder: Path, name: str) -> None:
    content, words = FILES[name]
    (folder / "config.toml").write_bytes(content)
    assert_refused(worker, folder, PLAN, words)


def test_a_chain_of_files_has_an_end(worker: Worker, folder: Path) -> None:
    for i in range(2000):
        (folder / f"{i}.toml").write_text(f'extends = "{i + 1}.toml"\n')
    (folder / "2000.toml").write_text(CONFIG)
    assert_refused(worker, folder, ("plan", "0.toml"), r"\d+.toml: .*extend")


# One override of a good configuration, and what the message has to say besides its key.
VALUES: dict[str, str] = {
    "data.max_tokens=true": "max_tokens = true: Input should not be true or false",
    "data.max_tokens=72": "model.max_tokens",
    "data.tokens_per_batch=8": r"exceeds tokens_per_batch \(8\).*lower max_tokens or raise",
    "data.dataset=none.h5": "not a dataset: No such file",
    'data.dataset="a\\u0000b"': "not a dataset: embedded null byte",
    "model.family=bert": "'gpt'",
    "model.layers_per_stage=[1, 2]": "adds up to 3, but n_layers is 6",
    "model.layers_per_stage=[1, 2, 3]": "names 3 stages, but cluster.n_stages is 2; change either",
    "model={family='llama', dropout=0.1}": "unknown key 'model.dropout' of family 'llama'",
    "model.head_size=5": "must be hidden_size",
    "model.tied_head=maybe": "should be a valid boolean",
    "model.n_kv_heads=2": "unknown key 'model.n_kv_heads' of family 'gpt'",
    "model={family='t5', head_size=4, tied_head=false, scale_decoder_outputs=true}": (
        "scale_decoder_outputs is true, but tied_head is false.*out"
    ),
    "model={family='t5', head_size=4, max_distance=16}": "must be more than half of n_buckets",
    "model.lora={targets=['q_proj']}": "names 'q_proj', but the linear layers .* are query_",
    "model.lora={targets=['up', 'up']}": "names a layer twice: up, up",
    "model={family='llama', n_kv_heads=3}": "must be a multiple of n_kv_heads .3.",
    "model={family='llama', head_size=3}": "head_size .3. must be even",
    "model={family='llama', rope_scaling={factor=2}}": "rope_scaling.kind is missing",
    "model={family='llama', rope_scaling={kind='ntk'}}": "tags: 'linear', 'llama3', 'yarn'",
    "model={family='llama', rope_scaling={kind='yarn', factor=8, beta_fast=1, "
    "original_max_tokens=8}}": "must be greater than beta_slow .1.0.",
    "model={family='llama', rope_scaling={kind='llama3', factor=8, low_freq_factor=4, "
    "high_freq_factor=1, original_max_tokens=8}}": "must be greater than low_freq_factor",
    "model.vocab_size=49": "50 tokens, but model.vocab_size is 49",
    "cluster.n_shards=3": "does not divide",
    "cluster.device_memory_bytes=80xb": "could not interpret byte unit: xb",
    "planner.cost.launch_ms=nan": "finite|greater than 0",
    "planner.cost.path=table.h5": "unknown key 'planner.cost.path' of kind 'analytic'",
    "planner.cost={kind='profiled'}": "planner.cost.path is missing",
    "planner.cost={kind='profiled', path='table.h5', recompute=['some']}": "recompute",
    "planner.cost={kind='profiled', path='table.h5', recompute=['full']}": "recompute=full",
    "planner.batch={rule='naive_padding', rows_per_microbatch='tune'}": "valid integer.*'tuned'",
    "planner.schedule.rules=['2f2b']": "'1f1b'",
    "planner.schedule.rules=['adaptiv']": "'adaptiv': Input should be '1f1b'.*'adaptive'",
    "planner.schedule.rules=['zb_h1']": "split_backward",
    "training.learning_rate=nan": "finite|greater than 0",
    "training.warmup_iterations=4": "exceeds iterations",
    "training.betas=[0.9]": "betas.1 is missing",
}


@pytest.mark.parametrize("override", VALUES)
def test_a_bad_value_is_named(worker: Worker, folder: Path, override: str) -> None:
    table, _, key = override.partition("=")[0].rpartition(".")
    words = f"(?s)^(?=.*({table}|{key}|: not a)).*({VALUES[override]})"
    assert_refused(worker, folder, (*PLAN, "--set", override), words)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("nonsense", "expected table.key=value"),
        ("=1", "expected table.key=value"),
        ("", "expected table.key=value"),
        (".=1", "expected table.key=value"),
        ("data..seed=1", "expected table.key=value"),
        ("data.seed.=1", "expected table.key=value"),
        ("data.seed=1\n[model]\nn_layers=1", "data.seed"),
        ("data=1", "data = 1"),
        ("data.seed.more=1", "data.seed"),
        ("sed.data=1", "unknown key 'sed'"),
        ("training.iteration=1", "did you mean 'iterations'"),
        ("data.seed=" + "9" * 10**5, "data.seed"),
        ("data.seed=0x" + "f" * 10**4, "data.seed"),
        ("data.seed=" + "[" * 10**5, "data.seed"),
        ("data.seed=\x1b[2J", "data.seed"),
        ("data.dataset=" + "x" * 10**5, "xxx: not a dataset: File name too long"),
        ("extends=other.toml", "extends"),
        (".".join(["a"] * 10**4) + "=1", "unknown key"),
    ],
    ids=lambda text: text[:20].encode("unicode_escape").decode(),
)
def test_a_bad_override_is_named(worker: Worker, folder: Path, override: str, words: str) -> None:
    assert_refused(worker, folder, (*PLAN, "--set", override), words)
