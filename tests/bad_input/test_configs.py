"""Configuration files, and what --set makes of them."""

from pathlib import Path

import pytest
from tests.bad_input.good import CONFIG, PLAN
from tests.bad_input.oracle import assert_refused
from tests.bad_input.worker import Worker

# Text of config.toml, and what the message has to say.
FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "data is missing"),
    "no table header": (b"data]\n", "not valid TOML.*line 1"),
    "an open table header": (b"[data\n", "not valid TOML.*line 1"),
    "an open string": (b'[data]\ndataset = "x\n', "not valid TOML.*line 2"),
    "no value": (b"[data]\nmax_tokens =\n", "not valid TOML.*line 2"),
    "no key": (b"= 1\n", "not valid TOML.*line 1"),
    "a key twice": (b"[data]\nseed = 1\nseed = 2\n", "not valid TOML.*line 3"),
    "a table twice": (b"[data]\nseed = 1\n[data]\nseed = 2\n", "not valid TOML.*line 3"),
    "a value that is a table, too": (b"data = 1\n[data]\nseed = 2\n", "not valid TOML"),
    "JSON": (b'{"data": {}}', "not valid TOML"),
    "YAML": (b"data:\n  seed: 1\n", "not valid TOML"),
    "Python's True": (b"[cluster]\nx = True\n", "not valid TOML"),
    "Latin-1": (b'[data]\ndataset = "caf\xe9"\n', "not (valid TOML|UTF-8)"),
    "a byte order mark": (b"\xef\xbb\xbf" + CONFIG.encode(), "not valid TOML"),
    "UTF-16": (CONFIG.encode("utf-16"), "not (valid TOML|UTF-8)"),
    "NUL bytes": (b"\x00" * 100, "not valid TOML"),
    "HDF5": (b"\x89HDF\r\n\x1a\n" + bytes(100), "not (valid TOML|UTF-8)"),
    "an escape sequence": (b"\x1b[2J", "not valid TOML"),
    "a deep list": (b"x = " + b"[" * 30_000, "not valid TOML"),
    "a deep table": (b"x = " + b"{a=" * 15_000, "not valid TOML"),
    "a deep key": (b".".join([b"a"] * 2_000) + b" = 1\n", "unknown key|not valid TOML"),
    "a number of many digits": (b"x = " + b"9" * 5000, "not valid TOML"),
    "a long line": (b"x" * 50_000, "not valid TOML"),
    "a file that is too large": (b"# a comment\n" * 10_000, "larger than 65,536 bytes"),
    "many unknown keys": (
        CONFIG.encode() + b"".join(b"k%d = 1\n" % i for i in range(1000)),
        "unknown key 'training.k0'",
    ),
    "a long unknown key": (
        CONFIG.encode() + b"k" * 50_000 + b" = 1\n",
        "unknown key 'training.kkk",
    ),
    "an unknown table": (CONFIG.encode() + b"[trainin]\n", "'trainin'; did you mean 'training'"),
    "an unknown key with odd letters": (
        CONFIG.encode() + b'"a\\u001b[2J" = 1\n',
        r"unknown key 'training.a.x1b",
    ),
    "a list for a table": (b"data = []\n", "data"),
    "a string for a table": (b'data = "data.h5"\n', "data = 'data.h5'"),
    "a list of tables": (b"[[data]]\n", "data"),
    "a missing table": (CONFIG.replace("[model]", "[store]").encode(), "model is missing"),
    "a missing key": (CONFIG.replace("n_layers = 6", "").encode(), "model.n_layers is missing"),
    "extends of a number": (b"extends = 1\n", "extends must be the name of one file, got 1"),
    "extends of a list": (b'extends = ["a.toml"]\n', "extends must be the name of one file"),
    "extends of nothing": (b'extends = ""\n', "extends|cannot be read"),
    "extends itself": (b'extends = "config.toml"\n', "extends itself through config.toml"),
    "extends a missing file": (
        b'extends = "none.toml"\n',
        "none.toml: cannot be read: No such file",
    ),
    "extends a folder": (b'extends = "run"\n', "run: cannot be read: is a folder"),
    "extends what is no TOML": (b'extends = "in.jsonl"\n', "in.jsonl: not valid TOML"),
    "extends a name with NUL": (b'extends = "a\\u0000b"\n', "extends|cannot be read"),
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
    "data.max_tokens=0": "≥ 1",
    "data.max_tokens=-8": "≥ 1",
    "data.max_tokens=8.5": "integer",
    "data.max_tokens=nan": "finite|integer",
    "data.max_tokens=many": "integer",
    "data.max_tokens=true": "max_tokens = true: must be an integer",
    "data.max_tokens=100000000000000000000000000": "≤|exceeds",
    "data.max_tokens=72": "model.max_tokens",
    "data.tokens_per_batch=8": "exceeds tokens_per_batch",
    "data.tokens_per_batch=1e30": "must be an integer .* ≤",
    "data.dataset=": "at least 1 character",
    "data.dataset=7": "must be text",
    "data.dataset=none.h5": "not a dataset: No such file",
    "data.dataset=run": "folder",
    "data.dataset=config.toml": "not a complete HDF5 file",
    'data.dataset="a\\u0000b"': "not a dataset: embedded null byte",
    "data.seed=-1": "≥ 0",
    "data.seed=99999999999999999999999999999999": "≤",
    "model.family=bert": "'gpt'",
    "model.n_layers=0": "≥ 1",
    "model.n_layers=1": "n_stages",
    "model.n_layers=1000000000": "≤",
    "model.hidden_size=-8": "≥ 1",
    "model.hidden_size=9": "multiple of n_heads",
    "model.hidden_size=100000000000000000000": "≤",
    "model.n_heads=3": "multiple of n_heads",
    "model.head_size=5": "must be hidden_size",
    "model.norm_epsilon=0": "> 0",
    "model.norm_epsilon=true": "norm_epsilon = true: must be a finite number",
    "model.tied_head=maybe": "must be true or false",
    "model.n_kv_heads=2": "n_kv_heads = 2: family is 'gpt', and only 'llama' has this key",
    "model={family='llama', n_kv_heads=3}": "must be a multiple of n_kv_heads .3.",
    "model={family='llama', head_size=3}": "head_size .3. must be even",
    "model={family='llama', rope_theta=1}": "rope_theta = 1: must be .* > 1",
    "model={family='llama', rope_scaling={factor=2}}": "rope_scaling.kind is missing",
    "model={family='llama', rope_scaling={kind='ntk'}}": "must be 'linear', 'llama3' or 'yarn'",
    "model={family='llama', rope_scaling={kind='yarn', factor=8, beta_fast=1, "
    "original_max_tokens=8}}": "must be greater than beta_slow .1.0.",
    "model={family='llama', rope_scaling={kind='linear'}}": "rope_scaling.factor is missing",
    "model={family='llama', rope_scaling={kind='linear', factor=nan}}": "finite number",
    "model={family='llama', rope_scaling={kind='llama3', factor=8, low_freq_factor=4, "
    "high_freq_factor=1, original_max_tokens=8}}": "must be greater than low_freq_factor",
    "model.ffn_size=100000000000000000000": "≤",
    "model.vocab_size=49": "50 tokens, but model.vocab_size is 49",
    "model.vocab_size=1": "≥ 2",
    "model.vocab_size=100000000000000000000": "≤",
    "model.max_tokens=32": "model.max_tokens .32. is less",
    "model.max_tokens=100000000000000000000": "≤",
    "cluster.n_stages=0": "≥ 1",
    "cluster.n_stages=7": "exceeds model.n_layers",
    "cluster.n_stages=1.5": "integer",
    "cluster.n_replicas=65536": "at most 65536 ranks",
    "cluster.n_replicas=100000000000000000000": "at most 65536|≤",
    "cluster.n_shards=3": "does not divide",
    "cluster.n_shards=100000000000000000000": "does not divide|≤",
    "cluster.zero_stage=3": "0 or 1",
    "cluster.device_memory_bytes=0": "> 0",
    "cluster.device_memory_bytes=1000": "memory",
    "cluster.device_memory_bytes=1e300": "integer|≤",
    "cluster.device_memory_bytes=inf": "finite|integer",
    "cluster.link.latency_ms=-1": "≥ 0",
    "cluster.link.latency_ms=nan": "finite|≥ 0",
    "cluster.link.latency_ms=inf": "finite|≤",
    "cluster.link.bytes_per_ms=0": "≥ 1",
    "cluster.link.bytes_per_ms=nan": "≥ 1",
    "cluster.link.full_duplex=maybe": "must be true or false",
    "cluster.link=fast": "link",
    "planner.cost.kind=guess": "'analytic'",
    "planner.cost=analytic": "planner.cost",
    "planner.cost.flops_per_ms=inf": "finite",
    "planner.cost.flops_per_ms=0": "≥ 1",
    "planner.cost.flops_per_ms=1e-320": "≥",
    "planner.cost.launch_ms=nan": "finite|> 0",
    "planner.cost.launch_ms=1e308": "≤",
    "planner.cost.state_factor=4": "no such key any more: it follows from training.dtype",
    "training.optimizer=adafactor": "no such key any more: it is AdamW; .*zero_stage = 1",
    "training.adafactor.relative_step=true": "no such key any more: the optimizer is AdamW",
    "planner.search.refinement=1": "no such key any more: it follows from planner.search.effort",
    "planner.cost.element_bytes=2": "no such key any more: it follows from training.dtype",
    "planner.cost.path=table.h5": "path = 'table.h5': kind is 'analytic', and only 'profiled' has",
    "planner.cost={kind='profiled'}": "planner.cost.path is missing",
    "planner.cost={kind='profiled', path=7}": "planner.cost.path",
    "planner.cost={kind='profiled', path='none.h5'}": "not a cost table: No such file",
    "planner.cost={kind='profiled', path=''}": "planner.cost.path|folder",
    "planner.cost={kind='profiled', path='table.h5', recompute=[]}": "recompute",
    "planner.cost={kind='profiled', path='table.h5', recompute=['some']}": "recompute",
    "planner.cost={kind='profiled', path='table.h5', recompute=['full']}": "recompute=full",
    "planner.batch.rule=best": "'dynamic'",
    "planner.batch.memory_shares=all": "memory_shares",
    "planner.batch.recompute_choice=none": "recompute_choice",
    "planner.batch={rule='naive_padding', rows_per_microbatch='tune'}": "did you mean 'tuned'?",
    "planner.batch={rule='naive_padding', rows_per_microbatch=-1}": "≥ 1",
    "planner.batch={rule='token_budget', tokens_per_microbatch=0}": "≥ 1",
    "planner.schedule.rules=['2f2b']": "'1f1b'",
    "planner.schedule.rules=['zb_h1']": "split_backward",
    "planner.schedule.rules=1": "planner.schedule.rules",
    "planner.search.effort=-1": "≥ 0",
    "planner.search.effort=1e300": "integer|≤",
    "planner.search.effort=9223372036854775808": "≤",
    "planner.search.seed=-1": "≥ 0",
    "training.iterations=0": "≥ 1",
    "training.iterations=1000000000000000000000000": "≤",
    "training.seed=-1": "≥ 0",
    "training.seed=100000000000000000000": "≤",
    "training.dtype=int8": "'float32'",
    "training.learning_rate=0": "> 0",
    "training.learning_rate=nan": "finite|> 0",
    "training.learning_rate=inf": "finite",
    "training.warmup_iterations=4": "exceeds iterations",
    "training.min_learning_rate_ratio=1.1": "≤ 1",
    "training.weight_decay=inf": "finite",
    "training.betas=[0.9]": "betas",
    "training.betas=[0.9, 1.0]": "betas",
    "training.betas=[nan, nan]": "betas",
    "training.clip_norm=-1": "≥ 0",
    "training.clip_norm=nan": "finite|≥ 0",
    "training.device=tpu": "'cuda'",
    "training.loss_weighting=fair": "'token'",
    "training.threads=0": "≥ 1",
    "training.threads=1000000000000": "≤",
    "store.look_ahead=0": "≥ 1",
    "store.look_ahead=1000000000000": "≤",
    "store.plan_bytes=8": "≥ 1024",
    "store.plan_bytes=1000000000000000000000": "≤",
    "store.timeout_s=0": "> 0",
    "store.timeout_s=nan": "finite|> 0",
    "store.timeout_s=inf": "finite",
    "report.trace_iterations=-1": "≥ 0",
    "report.trace_iterations=1.5": "integer",
    "report.log_every=0": "≥ 1",
    "report.wandb=''": "at least 1 character",
    "report.wandb_mode=online": "no such key any more: set WANDB_MODE in the environment",
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
