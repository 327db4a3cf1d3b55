"""Mistakes in what folders of models mean, and in what goes with them."""

from tests.mutants.mutant import Mutant

DESCRIBED = ("tests/training/huggingface/test_describe_model.py",)
FILES = ("tests/training/huggingface/test_files_of_models.py",)
SETTINGS = ("tests/training/huggingface/test_settings_of_models.py",)
TOKENIZER = ("tests/experiment/test_check_tokenizer.py",)
VOCABULARY = ("tests/data/text/test_vocabulary.py",)
HUGGINGFACE = "training/huggingface"

MODEL_FOLDERS = (
    Mutant(
        f"{HUGGINGFACE}/tensors.py",
        "if single in shards or not single.exists():",
        "if shards:",
        "an index that was left behind is followed",
        FILES,
    ),
    Mutant(
        f"{HUGGINGFACE}/tensors.py",
        "    if all(shard.exists() for shard in shards):\n",
        "    if not shards:\n",
        "of two sets of weights one is taken without a word",
        FILES,
    ),
    Mutant(
        f"{HUGGINGFACE}/describe_model.py",
        "                stored_tensors(origin.folder)",
        "                str(origin.folder)",
        "a file that was not fetched completely is described",
        DESCRIBED,
    ),
    Mutant(
        f"{HUGGINGFACE}/origin.py",
        "if (path / ADAPTER_CONFIG).exists():",
        "if not path.exists():",
        "an adapter beside a model is passed over",
        FILES,
    ),
    Mutant(
        f"{HUGGINGFACE}/read_weights.py",
        "if not torch.stack(values.aminmax()).isfinite().all():",
        "if values.isinf().any():",
        "weights may be NaN",
        FILES,
    ),
    Mutant(
        f"{HUGGINGFACE}/tensors.py",
        "if copy in tensors and name not in tensors:",
        "if False:",
        "a tied tensor has one name only",
        SETTINGS,
    ),
    Mutant(
        f"{HUGGINGFACE}/tensors.py",
        "if copy in tensors and name not in tensors:",
        "if copy in tensors:",
        "of tied tensors the last one counts, and none is compared",
        (f"{SETTINGS[0]}::test_several_names_of_a_tied_tensor_are_equal",),
    ),
    Mutant(
        f"{HUGGINGFACE}/t5.py",
        "if names and not (_HEAD in names and names.keys() & _EMBEDDINGS):",
        "if names and settings.get('tie_word_embeddings', True):",
        "a head of which there are weights is tied, if the settings say so",
        SETTINGS,
    ),
    Mutant(
        f"{HUGGINGFACE}/t5.py",
        'return {"tied_head": True, "scale_decoder_outputs": False}',
        'return {"tied_head": True}',
        "a T5 1.1 without a head scales its logits",
        SETTINGS,
    ),
    Mutant(
        f"{HUGGINGFACE}/t5.py",
        "_model(settings, scaled=False)",
        '_model(settings, scaled=settings.flag("tie_word_embeddings", default=True))',
        "an mT5 whose settings call it tied scales its logits",
        SETTINGS,
    ),
    Mutant(
        f"{HUGGINGFACE}/decoder.py",
        'settings.completed("num_key_value_heads", *',
        "settings.completed(*",
        "a Mistral has as many heads of keys as of queries where its file says nothing",
        (f"{SETTINGS[0]}::test_sizes_that_are_left_out_are_those_of_the_class",),
    ),
    Mutant(
        f"{HUGGINGFACE}/mapping.py",
        "[name for name in names if name not in self.values]",
        "list(names)",
        "settings of a file do not count",
        SETTINGS,
    ),
    Mutant(
        f"{HUGGINGFACE}/decoder.py",
        "    if settings.get(name) is not None:\n        return settings.integer(name)\n",
        "",
        "rows of the pretraining are looked for in one place",
        (f"{SETTINGS[0]}::test_the_rows_of_the_pretraining_are_found",),
    ),
    Mutant(
        f"{HUGGINGFACE}/mapping.py",
        'value.removeprefix("torch.")',
        "value",
        "a type with the prefix of torch is refused",
        (f"{SETTINGS[0]}::test_the_type_of_weights_is_read_as_transformers_writes_it",),
    ),
    Mutant(
        "experiment/check_dataset.py",
        "return header.vocabulary_sha256 == vocabulary_sha256(of_model.ids)",
        "return header.vocab_size <= of_model.size",
        "any smaller vocabulary is that of the model",
        TOKENIZER,
    ),
    Mutant(
        "experiment/check_dataset.py",
        "if config.data.check_tokenizer and origin:",
        "if False:",
        "a dataset of another tokenizer is trained on",
        TOKENIZER,
    ),
    Mutant(
        "experiment/experiment.py",
        "ITEM_BYTES[training.dtype]",
        "4",
        "all numbers are planned as float32",
        (
            "tests/experiment/test_held_weights.py"
            "::test_estimates_are_of_numbers_of_the_type_that_trains",
        ),
    ),
    Mutant(
        "data/text/vocabulary.py",
        'ids |= _ids({each.get("content"): each.get("id")})',
        "pass",
        "added tokens are no part of the vocabulary",
        VOCABULARY,
    ),
)
