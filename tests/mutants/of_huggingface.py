"""Mistakes in what is read from, and written as, models of Hugging Face."""

from tests.mutants.mutant import Mutant

LOGITS = (
    "tests/training/huggingface/test_import_export.py"
    "::test_logits_are_those_of_transformers_before_and_after"
)
FOLDER = ("tests/training/huggingface/test_folder.py",)
SETTINGS = "tests/training/huggingface/test_settings_of_models.py"
YARN = (f"{SETTINGS}::test_angles_of_yarn_are_those_of_transformers",)
NO_CLASS = (f"{SETTINGS}::test_no_class_has_biases_of_some_other_maps",)
WEIGHTS = "tests/training/huggingface/test_read_weights.py"
SIZES = ("tests/experiment/test_sizes_of_origin.py",)

PREDICT = ("tests/models/test_predict.py",)
GENERATE = ("tests/training/test_generate.py",)

HUGGINGFACE = (
    Mutant(
        "training/huggingface/read_weights.py",
        "    if compares_copies:\n",
        "    if not compares_copies:\n",
        "a run begins with copies that differ",
        (f"{WEIGHTS}::test_copies_that_differ_are_refused_where_they_are_compared",),
    ),
    Mutant(
        "training/huggingface/read_weights.py",
        "name.removeprefix(WEIGHT) in self.source.maps",
        "True",
        "a model of Hugging Face has adapters and an optimizer",
        (WEIGHTS,),
    ),
    Mutant(
        "training/huggingface/read_weights.py",
        "ADAPTER not in part.name or self.has(part.name)",
        "True",
        "adapters are read from a checkpoint that has none",
        (f"{WEIGHTS}::test_adapters_beside_weights_that_have_none_keep_their_values",),
    ),
    Mutant(
        "training/huggingface/decoder.py",
        'settings.number("layer_norm_epsilon", 1e-5)',
        "1e-5",
        "the epsilon of norms is not read",
        (f"{LOGITS}[gpt2]",),
    ),
    Mutant(
        "training/huggingface/decoder.py",
        'settings.flag("tie_word_embeddings", default=True)',
        "True",
        "every head is tied",
        (f"{LOGITS}[gpt2-untied]",),
    ),
    Mutant(
        "training/huggingface/import_model.py",
        "    check_copies(tensors)\n",
        "",
        "a head that differs counts as tied",
        FOLDER,
    ),
    Mutant(
        "training/huggingface/read_weights.py",
        "piece.at - start, piece.n_rows",
        "0, piece.n_rows",
        "joined tensors overwrite each other",
        (f"{LOGITS}[t5]",),
    ),
    Mutant(
        "training/huggingface/t5.py",
        'settings.number("layer_norm_epsilon", 1e-6)',
        "1e-6",
        "the epsilon of norms is not read",
        (f"{LOGITS}[t5]",),
    ),
    Mutant(
        "training/huggingface/decoder.py",
        'settings.number("rms_norm_eps", 1e-6)',
        "1e-6",
        "the epsilon of norms is not read",
        (f"{LOGITS}[llama]",),
    ),
    Mutant(
        "training/huggingface/decoder.py",
        '_llama("Qwen2", qkv_bias=True)',
        '_llama("Qwen2")',
        "biases of queries, keys and values are not read",
        (f"{LOGITS}[qwen2]",),
    ),
    Mutant(
        "training/huggingface/decoder.py",
        '"qkv_bias": qkv_bias or has_biases',
        '"qkv_bias": qkv_bias',
        "biases of the output alone",
        (f"{LOGITS}[llama-yarn]",),
    ),
    Mutant(
        "training/huggingface/decoder.py",
        "if shape.output_bias and not may_have_biases:",
        "if False:",
        "a class that drops biases",
        NO_CLASS,
    ),
    Mutant(
        "models/decoder.py",
        "bias=settings.output_bias",
        "bias=False",
        "the bias after attention is dropped",
        (f"{LOGITS}[llama-yarn]",),
    ),
    Mutant(
        "models/rotary.py",
        "(angles.sin() * factor)",
        "angles.sin()",
        "vectors that become longer in one direction",
        YARN,
    ),
    Mutant(
        "models/rotary.py",
        "math.floor(begin), math.ceil(end)",
        "math.floor(begin), math.floor(end)",
        "slow pairs that begin too early",
        YARN,
    ),
    Mutant(
        "models/rotary.py",
        "min(end, 2 * n_pairs - 1)",
        "min(end, n_pairs)",
        "slow pairs that begin at the last pair",
        YARN,
    ),
    Mutant(
        "models/rotary.py",
        "((end - begin) or 1e-3)",
        "(end - begin)",
        "fast pairs next to slow ones",
        YARN,
    ),
    Mutant(
        "training/huggingface/decoder.py",
        "return scale / common",
        "return scale",
        "the factor of all dimensions is not read",
        YARN,
    ),
    Mutant(
        "training/huggingface/decoder.py",
        'complete.flag("truncate", default=True)',
        "True",
        "limits between fast and slow pairs that are always rounded",
        YARN,
    ),
    Mutant(
        "training/huggingface/decoder.py",
        'complete.number("rope_theta", 10_000.0)',
        "10_000.0",
        "the base of rotary positions is not read",
        (f"{LOGITS}[llama]",),
    ),
    Mutant(
        "training/huggingface/export_model.py",
        "            checking.result()\n",
        "",
        "a damaged checkpoint is exported",
        (f"{FOLDER[0]}::test_a_damaged_checkpoint_is_not_exported",),
    ),
    Mutant(
        "training/huggingface/t5.py",
        'settings.share("dropout_rate", 0.1)',
        "0.1",
        "the rate of dropout is not read",
        FOLDER,
    ),
    Mutant(
        "training/huggingface/export_model.py",
        "        **origin.mapping.dropout(origin.shape),\n",
        "",
        "an export has the dropout of the model that the run began with",
        FOLDER,
    ),
    Mutant(
        "training/huggingface/export_model.py",
        "if HASH_FACT in facts and",
        "if False and",
        "adapters are added to any weights of these shapes",
        (
            "tests/training/huggingface/test_export_adapters.py"
            "::test_adapters_go_with_the_weights_beside_which_they_were_trained",
        ),
    ),
    Mutant(
        "training/huggingface/token_ids.py",
        "_one_or_list([*ids, *more])",
        "_one_or_list(more)",
        "a model does not stop any more where it did",
        ("tests/training/huggingface/test_token_ids.py",),
    ),
    Mutant(
        "training/huggingface/export_model.py",
        "add_end_ids(partial, read_end_ids(origin.small_files))",
        "pass",
        "a merged model writes on after its turns",
        (
            "tests/training/huggingface/test_export_adapters.py"
            "::test_a_merged_model_stops_where_the_adapters_do",
        ),
    ),
    Mutant(
        "training/generate.py",
        "*(read_end_ids(folder) if folder else ())",
        "",
        "text goes on after the end of a turn",
        ("tests/training/test_generate.py::test_text_ends_where_the_model_says",),
    ),
    Mutant(
        "training/huggingface/token_ids.py",
        '{"decoder_start_token_id": start_id, ',
        "{",
        "exports do not say with which token decoders begin",
        (f"{LOGITS}[t5]",),
    ),
    Mutant(
        "training/huggingface/origin.py",
        "values | (read_object(tokens) if tokens.exists() else {})",
        "values",
        "config.json has none of the tokens that begin and end samples",
        (f"{LOGITS}[gpt2]",),
    ),
    Mutant(
        "experiment/load.py",
        "    if origin.shape.lora is not None:\n",
        "    if False:\n",
        "a run begins with adapters as if they were a model",
        (f"{SIZES[0]}::test_the_way_to_begin_with_adapters_is_named",),
    ),
    Mutant(
        "experiment/load.py",
        "elif given != stored:",
        "elif given is None:",
        "sizes that differ are not noticed",
        SIZES,
    ),
    Mutant(
        "models/key_value_cache.py",
        "keys[begin:], values[begin:] = key, value",
        "keys[begin:], values[: len(value)] = key, value",
        "what is new comes before what was kept",
        PREDICT,
    ),
    Mutant(
        "models/attention_context.py",
        "if self.slice is None or self.slice.begin == 0:",
        "if True:",
        "a token that continues a row is at its start",
        PREDICT,
    ),
    Mutant(
        "models/attention_context.py",
        "    if begin:\n",
        "    if False:\n",
        "a token that continues a row sees itself only",
        PREDICT,
    ),
    Mutant(
        "training/generate.py",
        "shares.cumsum(-1) - shares >= self.top_p",
        "shares.cumsum(-1) >= self.top_p",
        "a token too few is chosen from",
        (f"{GENERATE[0]}::test_sampling_has_the_shares_of_its_tokens",),
    ),
    Mutant(
        "training/generate.py",
        "        tokens = [tokenizer.start_id, *tokens]\n",
        "        pass\n",
        "models do not read a start token",
        GENERATE,
    ),
    Mutant(
        "data/text/chat_template.py",
        "until(1, asks=True)",
        "until(1)",
        "the assistant is not asked to answer",
        GENERATE,
    ),
    Mutant(
        "data/text/recipe.py",
        "return recipe.tokenizer, list(tokens)",
        "return tokenizer, list(tokens)",
        "a start token before that of the template",
        GENERATE,
    ),
)
