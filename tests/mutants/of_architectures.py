"""Mistakes in what families of models say of themselves."""

from tests.mutants.mutant import Mutant

CONTRACT = "tests/contract/test_architectures.py"
PARAMETERS = (f"{CONTRACT}::test_parameters_are_those_of_the_module",)
WORK = (f"{CONTRACT}::test_work_is_what_torch_counts_in_products",)
REPEATED = (f"{CONTRACT}::test_recomputed_work_is_all_but_the_last_map_which_nothing_needs",)
DEFERRED = (f"{CONTRACT}::test_deferred_work_is_what_the_second_half_of_a_split_pass_computes",)
KEPT = (f"{CONTRACT}::test_a_layer_keeps_what_is_said",)
ENDS = (f"{CONTRACT}::test_embedding_and_head_keep_what_is_said_but_for_few_numbers_per_token",)
SIDES = (f"{CONTRACT}::test_what_a_side_adds_to_scores_is_kept_as_said_and_so_is_its_gradient",)
FULL_SIZE = ("tests/models/test_full_size_stage.py",)
TIED = ("tests/models/test_t5.py::test_every_split_starts_with_the_bits_of_the_whole_model",)
HELD = ("tests/planner/cost/test_encoder_decoder.py",)
TIED_WEIGHTS = (f"{CONTRACT}::test_tied_weights_are_those_that_several_stages_hold",)
ADAPTED = (KEPT[0], WORK[0])
HELD_ADAPTERS = ("tests/experiment/test_held_weights.py",)
FROZEN_IN_TABLE = ("tests/planner/cost/test_lora_costs.py",)
PLACEMENT = ("tests/architecture/test_placement.py",)

ARCHITECTURES = (
    Mutant("architecture/decoder.py", "vectors = norm\n", "vectors = norm + heads\n",
           "a bias too many", PARAMETERS),
    Mutant("architecture/decoder.py", "n_positions=self.max_tokens", "n_positions=0",
           "no table of positions", PARAMETERS),
    Mutant("architecture/t5.py", "self.n_buckets * n_heads",
           "self.n_buckets * self.n_heads", "every shard has the biases of all heads", PARAMETERS),
    Mutant("architecture/t5.py", "attention, crossed, fed_forward", "attention, fed_forward",
           "a decoder does not look at inputs",
           ("tests/contract/test_architectures.py"
            "::test_work_is_what_torch_counts_in_products[t5-12-4-decoder-1]",)),
    Mutant("architecture/decoder.py", "heads + 2 * sources if", "heads + sources if",
           "values without a bias", PARAMETERS),
    Mutant("architecture/decoder.py", "vectors += width if", "vectors += heads if",
           "a bias of the output as long as its inputs",
           PARAMETERS),
    Mutant("architecture/decoder.py", "        sources = settings.n_kv_heads * ",
           "        sources = self.n_heads * ", "every head has keys of its own", PARAMETERS),
    Mutant("architecture/decoder.py", '("n_heads", "n_kv_heads",', '("n_heads",',
           "shards cut heads of keys", ("tests/experiment/test_load.py",)),
    Mutant("architecture/decoder.py", "n_kept=len(inner_names) + 1", "n_kept=len(inner_names) + 2",
           "what a gate gives is kept", KEPT),
    Mutant("architecture/blocks.py", "(3 if is_normed else 2) * both", "2 * both",
           "norms of queries and keys keep nothing", KEPT),
    Mutant("architecture/blocks.py", "Amount(4 * width * both)", "Amount(3 * width * both)",
           "no output map of attention", WORK),
    Mutant("architecture/blocks.py", "Amount(4 * width * heads, 4 * width * heads)",
           "Amount(8 * width * heads)", "keys and values are made of targets",
           ("tests/contract/test_architectures.py"
            "::test_work_is_what_torch_counts_in_products[t5-12-4-decoder-1]",)),
    Mutant("architecture/blocks.py", "Amount(2 * width * vocabulary)", "Amount(width * vocabulary)",
           "an operation per weight of the logits", WORK),
    Mutant("architecture/part.py", "BACKWARD_WORK = 2", "BACKWARD_WORK = 3",
           "a backward pass takes three forward passes", WORK),
    Mutant("architecture/blocks.py", "(Recompute.SELECTIVE, Recompute.FULL)", "(Recompute.FULL,)",
           "selective recomputation keeps attention", REPEATED),
    Mutant("architecture/t5.py", "else (1, 1)", "else (2, 1)", "a ReLU keeps what enters it", KEPT),
    Mutant("architecture/t5.py", "(3, 2) if self.gated", "(4, 2) if self.gated",
           "a gate keeps its function's output", KEPT),
    Mutant("architecture/t5.py", "self.n_decoder_layers or n_encoders", "n_encoders",
           "a decoder is as deep as its encoder",
           ("tests/models/test_t5.py::test_the_loss_is_that_of_the_model_written_out",)),
    Mutant("architecture/t5.py", "(EMBEDDING, HEAD) if self.tied_head else (EMBEDDING,)",
           "(EMBEDDING, HEAD)", "every head has a copy of the embedding", TIED_WEIGHTS),
    Mutant("architecture/blocks.py", "Amount(2 * n_kept * width * inner)",
           "Amount(4 * width * inner)", "both maps around a ReLU defer", DEFERRED),
    Mutant("architecture/blocks.py", "kept=Amount(2 * stream + 2 * heads, 2 * heads)",
           "kept=Amount(2 * stream + 4 * heads)", "keys and values are kept of targets", KEPT),
    Mutant("architecture/t5.py", "kept=Amount(per_own_pair=1)", "kept=Amount(per_square=1)",
           "the encoder's mask has one row", SIDES),
    Mutant("architecture/blocks.py", "gradient_term=Amount(per_own_pair=heads)",
           "gradient_term=Amount()", "attention adds to the gradient of its bias in place",
           (f"{FULL_SIZE[0]}::test_what_long_rows_add_to_scores_is_planned_with_its_gradients",)),
    Mutant("architecture/t5.py", "max(masked, inner) if masked", "masked if masked",
           "no masks between the maps of feed-forward",
           (f"{FULL_SIZE[0]}"
            "::test_masks_of_dropout_are_planned_while_they_are_made_and_kept_nowhere",)),
    Mutant("models/dropout.py", "(numbers >> 16).bitwise_and_(0xFFFF)).mul_",
           "(numbers >> 16) & 0xFFFF).mul_", "a hash takes half as much room again",
           ("tests/models/test_full_size_stage.py"
            "::test_masks_of_dropout_are_planned_while_they_are_made_and_kept_nowhere",)),
    Mutant("architecture/part.py", "if recompute not in block.recomputed_in]", "]",
           "what is recomputed is kept", KEPT),
    Mutant("architecture/blocks.py", "kept=Amount(stream + width))", "kept=Amount(width))",
           "the head keeps what enters its norm only", ENDS),
    Mutant("architecture/blocks.py", "        recomputed_in=tuple(Recompute),", "",
           "the head computes its logits once", WORK),
    Mutant("architecture/t5.py", "self_attention(width, stream, heads, vectors=width, n_joined=2)",
           "self_attention(width, stream, heads, vectors=width, n_joined=1)",
           "queries, keys and values have weights of their own", PARAMETERS),
    Mutant("architecture/t5.py", "first or self.n_layers in layers", "first",
           "no embedding where the decoder begins", HELD),
    Mutant("architecture/t5.py", "layers.stop > self.n_layers",
           "layers.start >= self.n_layers", "one side is handed over", HELD),
    Mutant("architecture/part.py", "self.frozen, self.blocks[0].parameters)",
           "self.frozen, self.parameters)", "all of a part is tied", HELD_ADAPTERS),
    Mutant("planner/cost/model_state.py", "* n_frozen / n_numbers", "* n_frozen",
           "frozen weights are counted many times", HELD_ADAPTERS),
    Mutant("architecture/t5.py", "DECODER_BIAS: (DECODER_SIDE,)", "DECODER_BIAS: (HEAD,)",
           "copies of the decoder's bias are forgotten", TIED),
    Mutant("architecture/placement.py", "s in (0, n_stages - 1)", "s == 0",
           "the stage with the head takes the remainder", PLACEMENT),
    Mutant("architecture/placement.py", "first=stage == 0", "first=False",
           "no stage has the embedding", PLACEMENT),
    # adapters
    Mutant("architecture/lora.py", "else maps.kept.times(-1)", "else NOTHING",
           "inputs of frozen maps are kept", ADAPTED),
    Mutant("architecture/lora.py", ", spared=of_block.linear", "",
           "frozen weights have gradients",
           ("tests/contract/test_architectures.py"
            "::test_work_is_what_torch_counts_in_products[gpt-tied-lora-16-4-layer-1]",)),
    Mutant("architecture/lora.py", "        frozen=block.parameters,\n        largest",
           "        largest", "weights beside adapters have a state", HELD_ADAPTERS),
    Mutant("planner/cost/profiled.py", "        + held.frozen,\n", "        + 0,\n",
           "measured costs count no frozen weights", FROZEN_IN_TABLE),
    Mutant("planner/cost/table/profile_table.py", '*shape.fingerprint, "lora")',
           "*shape.fingerprint)", "costs of a model without adapters are taken",
           FROZEN_IN_TABLE),
)  # fmt: skip
