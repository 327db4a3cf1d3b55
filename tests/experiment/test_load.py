"""Configuration files: inheritance, overrides, and errors that say what to do."""

from pathlib import Path

import pytest

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.load import ConfigError, load_config, to_toml

COMPLETE = """
[data]
dataset = "corpus.h5"
max_tokens = 64
tokens_per_batch = 256

[model]
n_layers = 4
hidden_size = 32
n_heads = 4
ffn_size = 64
vocab_size = 257
max_tokens = 64

[cluster]
n_stages = 2
device_memory_bytes = 1_000_000

[planner.cost]
kind = "analytic"

[planner.batch]
rule = "dynamic"

[training]
iterations = 3

[evaluation]
held_out = 0.1
"""

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture
def complete(tmp_path: Path) -> Path:
    return written(tmp_path / "complete.toml", COMPLETE)


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


# Clusters are parts of configurations, see test_cluster_configs.py.
@pytest.mark.parametrize(
    "path",
    sorted(path for path in CONFIGS.rglob("*.toml") if path.parent.name != "clusters"),
    ids=lambda path: path.stem,
)
def test_every_file_in_configs_loads_or_is_a_parent(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if "init_from = " in path.read_text():  # sizes are those of a model that is not here
        with pytest.raises(ConfigError, match=r"model\.init_from: \w+/\S+: is not a folder"):
            load_config(path)
        return
    assert load_config(path).model.n_layers >= 1


def test_the_resolved_configuration_loads_to_the_same(complete: Path, tmp_path: Path) -> None:
    config = load_config(complete)
    again = load_config(written(tmp_path / "resolved.toml", to_toml(config)))
    assert again == config


@pytest.mark.usefixtures("complete")
def test_a_file_replaces_keys_of_its_parent_one_by_one(tmp_path: Path) -> None:
    text = 'extends = "complete.toml"\n[data]\nmax_tokens = 32\n'
    config = load_config(written(tmp_path / "child.toml", text))
    assert (config.data.max_tokens, config.data.tokens_per_batch) == (32, 256)


def test_another_variant_replaces_the_whole_table(tmp_path: Path) -> None:
    written(tmp_path / "base.toml", COMPLETE + "\n[store]\nlook_ahead = 2\n")
    text = 'extends = "base.toml"\n[planner.cost]\nkind = "profiled"\npath = "t.h5"\n'
    child = written(tmp_path / "child.toml", text)
    assert load_config(child).planner.cost.kind == "profiled"
    assert load_config(child, ["planner.cost.kind=analytic"]).planner.cost.kind == "analytic"


@pytest.mark.parametrize("family", [[], ["model.family=t5", "model.head_size=4"]])
def test_rows_are_as_long_as_the_longest_sample(complete: Path, family: list[str]) -> None:
    assert load_config(complete, [*family, "model.max_tokens=64"]).data.max_tokens == 64
    with pytest.raises(InputError, match="needs rows of 64 tokens, padded to a multiple of 8"):
        load_config(complete, [*family, "model.max_tokens=63"])


def test_what_fills_packed_rows_up_needs_few_positions(complete: Path) -> None:
    rule = "planner.batch={rule='dynamic', layouts=['packed'], token_multiple=1024}"
    config = load_config(complete, [rule, "data.max_tokens=60", "model.max_tokens=128"])
    assert (config.planner.token_multiple, config.planner.document_multiple) == (1024, 128)
    with pytest.raises(InputError, match="needs rows of 128 tokens, padded to a multiple of 128"):
        load_config(complete, [rule, "data.max_tokens=60", "model.max_tokens=127"])
    with pytest.raises(InputError, match=r'set layouts = \["packed"\] or lower it'):
        load_config(complete, ["planner.batch={rule='dynamic', token_multiple=1024}"])


def test_no_head_of_keys_is_cut_over_shards(complete: Path) -> None:
    grouped = ["model.family='llama'", "model.n_kv_heads=2"]
    load_config(complete, [*grouped, "cluster.n_shards=2"])
    with pytest.raises(ConfigError, match=r"\(4\) does not divide model.n_kv_heads \(2\): .* mult"):
        load_config(complete, [*grouped, "cluster.n_shards=4"])


def test_any_vocabulary_goes_with_any_shards_that_all_get_ids_of_it(complete: Path) -> None:
    config = load_config(complete, ["cluster.n_shards=4"])
    assert (config.model.vocab_size, config.model.ids_per_shard(4)) == (257, 65)
    with pytest.raises(
        ConfigError,
        match=r"model.vocab_size \(5\) leaves the last of cluster.n_shards \(4\) without token "
        "ids, as every shard takes 2; lower n_shards, or raise vocab_size to 8",
    ):
        load_config(complete, ["cluster.n_shards=4", "model.vocab_size=5"])


@pytest.mark.parametrize(
    ("size", "n_bytes"),
    [
        ("80GB", 80 * 10**9),
        ("512 MiB", 512 * 2**20),
        ("'1000B'", 1000),
        ("2gb", 2 * 10**9),
        ("3k", 3000),
        ("1.5m", 1_500_000),
    ],
)
def test_memory_has_units(complete: Path, tmp_path: Path, size: str, n_bytes: int) -> None:
    config = load_config(complete, [f"cluster.device_memory_bytes={size}"])
    assert config.cluster.device_memory_bytes == n_bytes
    assert f"device_memory_bytes = {n_bytes}\n" in to_toml(config)
    text = COMPLETE.replace("1_000_000", f'"{n_bytes} B"')
    assert load_config(written(tmp_path / "other.toml", text)).cluster == config.cluster


WRONG = ("'per microbach'", "[[]]", "-1.5", "{}")


@pytest.mark.parametrize("table", ExperimentConfig.model_fields)
def test_every_message_names_its_key(complete: Path, table: str) -> None:
    known = load_config(complete).model_dump(mode="json")[table]
    keys = [f"{table}.{key}" for key in known if not isinstance(known[key], dict)]
    inner = [f"{table}.{k}.{key}" for k in known if isinstance(known[k], dict) for key in known[k]]
    n_told = 0
    for key in keys + inner:
        for wrong in WRONG:
            try:
                load_config(complete, [f"{key}={wrong}"])
            except ConfigError as error:
                n_told += 1
                assert key.rpartition(".")[2] in str(error)
    assert n_told >= 2 * len(keys + inner)


def test_a_mistake_is_named_where_it_was_made(complete: Path, tmp_path: Path) -> None:
    written(complete, COMPLETE.replace("n_stages = 2", "n_stages = 0"))
    text = 'extends = "complete.toml"\n[training]\nseed = -1\n[store]\nlook = 3\n'
    child = written(tmp_path / "child.toml", text)
    with pytest.raises(ConfigError) as found:
        load_config(child, ["data.seed=-2", "planner.batch.rule=dynamc"])
    where = [line.partition(" = ")[0].partition(";")[0] for line in str(found.value).splitlines()]
    assert set(where) == {
        f"{complete}: cluster.n_stages",
        f"{child}: training.seed",
        f"{child}: unknown key 'store.look'",
        "--set data.seed",
        "--set planner.batch.rule",
    }


@pytest.mark.parametrize(("key", "where"), [("5", "'5'"), ("data.5", "'data.5'")])
def test_a_number_is_a_key_like_others(complete: Path, key: str, where: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown key {where}; known keys here: "):
        load_config(complete, [f"{key}=1"])


def test_a_length_of_training_replaces_the_other_kinds_of_the_parent(complete: Path) -> None:
    child = written(
        complete.parent / "child.toml", 'extends = "complete.toml"\ntraining.epochs = 2'
    )
    training = load_config(child).training
    assert (training.iterations, training.epochs) == (None, 2.0)
    assert load_config(child, ["training.tokens=900"]).training.tokens == 900
    with pytest.raises(ConfigError, match=r"exactly one of .* iterations and tokens are given"):
        load_config(child, ["training={tokens = 900, iterations = 3}"])


def test_a_mixture_takes_the_place_of_a_dataset_and_the_other_way_round(complete: Path) -> None:
    mixed = complete.parent / "mixed.toml"
    tables = "".join(f"[[data.mixture]]\ndataset = '{name}.h5'\n" for name in "ab")
    mixed.write_text(f"extends = 'complete.toml'\n{tables}")
    assert load_config(mixed).data.paths == ("a.h5", "b.h5")
    assert load_config(mixed, ["data.dataset=c.h5"]).data.paths == ("c.h5",)


def test_another_dataset_is_evaluated_in_place_of_held_out_samples(complete: Path) -> None:
    evaluation = load_config(complete, ["evaluation.dataset=other.h5"]).evaluation
    assert evaluation is not None
    assert (evaluation.dataset, evaluation.held_out) == ("other.h5", None)
    with pytest.raises(ConfigError, match="exactly one of dataset and held_out is needed; both"):
        load_config(complete, ["evaluation={dataset='x.h5', held_out=0.2}"])
