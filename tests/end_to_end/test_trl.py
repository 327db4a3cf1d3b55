"""Preference pairs of `trl`: the same tokens, losses, gradients and metrics."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tests.examples.chats import SPECIAL, folder_of
from tests.examples.foreign_models import small_gpt2

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.data.dataset.dataset_file import DatasetFile
from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.data.token_block import SampleTokens
from dynapipe_hpc.models.batch import IterationTokens
from dynapipe_hpc.models.family import StageOfFamily
from dynapipe_hpc.planner.batch.packed_shapes import packed_microbatch
from dynapipe_hpc.training.config import PreferenceLossConfig
from dynapipe_hpc.training.huggingface.origin import find_origin
from dynapipe_hpc.training.huggingface.read_weights import load_model
from dynapipe_hpc.training.objective import PreferenceLoss

trl = pytest.importorskip("trl", reason="needs trl: make reference")
datasets = pytest.importorskip("datasets", reason="needs datasets: make reference")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),  # theirs
]

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
BETA = 0.3
THEIR_PRECISION = 1e-6
"""Relative; their head computes log-probabilities in float32."""
COLUMNS = ("prompt_ids", "chosen_ids", "rejected_ids")
ANSWERS = [
    ("Hello", " world world"),
    ("Hello world.", "x"),
    ("user", "system user"),
    ("é.", "Hello"),
]
RECORDS = [
    {
        "prompt": [{"role": "user", "content": "Hello " * (1 + k)}],
        "chosen": [{"role": "assistant", "content": chosen}],
        "rejected": [{"role": "assistant", "content": rejected}],
    }
    for k, (chosen, rejected) in enumerate(ANSWERS)
]
SEVERAL = [
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "world"},
    {"role": "assistant", "content": "é."},
]
"""An answer of several messages."""
RECORDS.append({**RECORDS[0], "chosen": SEVERAL})
LOSSES = {
    "sigmoid": PreferenceLossConfig("dpo", BETA),
    "sigmoid_norm": PreferenceLossConfig("dpo", BETA, per_token=True),
    "ipo": PreferenceLossConfig("ipo", BETA, per_token=True),
}
Pairs = list[tuple[list[int], list[int], list[int]]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a tokenizer, and our dataset of the records."""
    path = tmp_path_factory.mktemp("trl")
    folder_of(path / "tokenizer", CHATML)
    torch.manual_seed(5)
    model = small_gpt2(vocab_size=400, n_positions=128, eos_token_id=1)
    model.save_pretrained(path / "theirs")
    (path / "in.jsonl").write_text("\n".join(map(json.dumps, RECORDS)))
    words = ["preprocess", "in.jsonl", "pairs.h5", "--tokenizer", "tokenizer", "--workers", "1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        assert main(words) == 0
    return path


def ours(folder: Path) -> Pairs:
    """Our tokens of every pair, whole."""
    with DatasetFile(folder / "pairs.h5") as dataset:
        pairs = (dataset.parts(i) for i in range(dataset.n_samples))
        return [tuple(each.tolist() for each in pair) for pair in pairs]


def trainer_of(folder: Path, loss_type: Any, **settings: Any) -> Any:
    model = transformers.GPT2LMHeadModel.from_pretrained(folder / "theirs", dtype=torch.float64)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "tokenizer")
    tokenizer.pad_token = SPECIAL[1]
    return trl.DPOTrainer(
        model,
        args=trl.DPOConfig(
            output_dir=str(folder / "output"),
            loss_type=loss_type,
            beta=BETA,
            per_device_train_batch_size=len(RECORDS),
            report_to=[],
            use_cpu=True,
            bf16=False,
            **settings,
        ),
        train_dataset=datasets.Dataset.from_list(RECORDS),
        processing_class=tokenizer,
    )


class Reader:
    """Tokens of our pairs; the first of each prompt is only read."""

    def __init__(self, pairs: Pairs) -> None:
        self.pairs = pairs

    def __call__(self, sample: Sample) -> SampleTokens:
        prompt, chosen, rejected = self.pairs[sample.sample_id]
        return SampleTokens(
            np.array(prompt[1:]), np.array(chosen), np.array(rejected), start=prompt[0]
        )


def our_loss(
    module: StageOfFamily, pairs: Pairs, config: PreferenceLossConfig, references: torch.Tensor
) -> tuple[torch.Tensor, PreferenceLoss]:
    samples = [Sample(i, len(p) - 1, len(c), 0, len(r)) for i, (p, c, r) in enumerate(pairs)]
    tokens = IterationTokens(
        dict(enumerate(samples)),
        dict.fromkeys(range(len(samples)), 1 / len(samples)),
        Reader(pairs),
        0,
    )
    batch = module.collate(packed_microbatch(samples, Recompute.NONE), tokens)
    objective = PreferenceLoss(config, references)
    losses = module.run(None, batch, Recompute.NONE)
    assert batch.labels is not None
    return objective.loss(losses, batch.labels), objective


def random_references(n_pairs: int) -> torch.Tensor:
    stream = torch.Generator().manual_seed(1)
    return -20 * torch.rand(n_pairs, 2, dtype=torch.float64, generator=stream)


def their_loss(trainer: Any, references: torch.Tensor) -> Any:
    batch = trainer.data_collator(list(trainer.train_dataset))
    batch |= {"ref_chosen_logps": references[:, 0], "ref_rejected_logps": references[:, 1]}
    trainer.precompute_ref_logps = True
    trainer.model.train()  # without dropout, for metrics of this name
    return trainer.compute_loss(trainer.model, batch)


@pytest.mark.parametrize("loss_type", LOSSES)
def test_tokens_losses_gradients_and_metrics_are_those_of_trl(folder: Path, loss_type: str) -> None:
    trainer, pairs = trainer_of(folder, loss_type), ours(folder)
    theirs = [tuple(row[k] for k in COLUMNS) for row in trainer.train_dataset]
    assert pairs == theirs
    references = random_references(len(pairs))
    expected = their_loss(trainer, references)
    expected.backward()

    module = load_model(find_origin(folder / "theirs")).double()
    found, objective = our_loss(module, pairs, LOSSES[loss_type], references)
    found.backward()  # type: ignore[no-untyped-call]
    assert found.item() == pytest.approx(expected.item(), rel=THEIR_PRECISION)
    norms = [
        float(torch.cat([p.grad.flatten() for p in m.parameters() if p.grad is not None]).norm())
        for m in (module, trainer.model)
    ]
    assert norms[0] == pytest.approx(norms[1], rel=THEIR_PRECISION)
    numbers = objective.take_numbers()
    metrics = trainer._metrics["train"]
    n = len(pairs)
    for name, number in (
        ("rewards/chosen", numbers.chosen_reward),
        ("rewards/rejected", numbers.rejected_reward),
        ("rewards/accuracies", numbers.accuracy),
        ("rewards/margins", numbers.chosen_reward - numbers.rejected_reward),
        ("logps/chosen", numbers.chosen_log_prob),
        ("logps/rejected", numbers.rejected_log_prob),
    ):
        assert number / n == pytest.approx(float(np.mean(metrics[name])), rel=THEIR_PRECISION), name


def test_where_losses_are_not_those_of_trl_the_page_says_so(folder: Path) -> None:
    pairs = ours(folder)
    references = random_references(len(pairs))
    module = load_model(find_origin(folder / "theirs")).double()

    def loss_of(**settings: float) -> float:
        config = LOSSES["sigmoid"]._replace(**settings)  # type: ignore[arg-type]
        return our_loss(module, pairs, config, references)[0].item()

    smoothed = trainer_of(folder, "sigmoid", label_smoothing=0.2)
    ignored = their_loss(smoothed, references).item()
    assert ignored == pytest.approx(loss_of(), rel=THEIR_PRECISION)
    assert ignored != pytest.approx(loss_of(label_smoothing=0.2), rel=1e-2)
    both = trainer_of(folder, ["sigmoid", "sft"], loss_weights=[1.0, 0.5])
    by_token = their_loss(both, references).item()
    assert by_token != pytest.approx(loss_of(sft_weight=0.5), rel=1e-4)
    page = (Path(__file__).parents[2] / "docs" / "preferences.md").read_text()
    assert "TRL 1.16 ignores `label_smoothing` in `sigmoid`" in page
    assert "mean over the tokens of a batch" in page
