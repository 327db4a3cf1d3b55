"""Optional keys of the [model] table belong to families."""

import pytest

from dynapipe_hpc.architecture.families import FAMILIES
from dynapipe_hpc.plan.model_shape import OPTIONS, ModelShape

SIZES = {
    "n_layers": 2,
    "hidden_size": 8,
    "n_heads": 2,
    "head_size": 4,
    "ffn_size": 16,
    "vocab_size": 30,
    "max_tokens": 24,
}
VALUES = {
    "norm_epsilon": 1e-3,
    "tied_head": True,
    "scale_decoder_outputs": False,
    "n_decoder_layers": 2,
    "gated": True,
    "n_buckets": 8,
    "max_distance": 20,
    "n_kv_heads": 1,
    "rope_theta": 5e5,
    "rope_scaling": {"kind": "linear", "factor": 2.0},
    "qkv_bias": True,
    "qk_norm": True,
    "dropout": 0.1,
}
FOREIGN = [
    (family, name)
    for family, page in FAMILIES.items()
    for name in OPTIONS
    if name not in page.options
]


def test_every_option_belongs_to_a_family() -> None:
    assert {name for page in FAMILIES.values() for name in page.options} == set(OPTIONS)


@pytest.mark.parametrize(("family", "name"), FOREIGN)
def test_an_option_of_another_family_is_refused_with_the_families_that_take_it(
    family: str, name: str
) -> None:
    with pytest.raises(ValueError, match=f"family '{family}' takes no {name} ") as refused:
        ModelShape.model_validate({**SIZES, "family": family, name: VALUES[name]})
    for other, page in FAMILIES.items():
        told = str(refused.value).split("only")[1].split(";")[0]
        assert (f"'{other}'" in told) == (name in page.options)


@pytest.mark.parametrize(("family", "epsilon"), [("gpt", 1e-5), ("llama", 1e-5), ("t5", 1e-6)])
def test_an_epsilon_that_is_left_out_is_the_familys_own(family: str, epsilon: float) -> None:
    shape = ModelShape.model_validate({**SIZES, "family": family})
    assert shape.architecture.norm_epsilon == epsilon


def test_a_head_of_its_own_is_not_scaled() -> None:
    own_head = {**SIZES, "family": "t5", "tied_head": False}
    assert not ModelShape.model_validate(own_head).architecture.tied_head
    with pytest.raises(
        ValueError, match=r"scale_decoder_outputs is true, but tied_head false.*out"
    ):
        ModelShape.model_validate({**own_head, "scale_decoder_outputs": True})


def test_distances_that_no_bucket_could_hold_are_refused() -> None:
    with pytest.raises(ValueError, match=r"max_distance \(16\) must be more than half of n_buck"):
        ModelShape.model_validate({**SIZES, "family": "t5", "max_distance": 16})
    ModelShape.model_validate({**SIZES, "family": "t5", "max_distance": 17})
