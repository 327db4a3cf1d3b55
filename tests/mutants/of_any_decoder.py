"""Mistakes in decoders of `transformers`, which are trained by their own layers."""

from tests.mutants.mutant import Mutant

SHAPE = ("tests/architecture/test_transformers.py",)
ATTENTION = ("tests/models/test_foreign_attention.py",)
STAGE = ("tests/models/test_transformers_stage.py",)
FOLDER = ("tests/training/huggingface/test_any_decoder.py",)

ANY_DECODER = (
    Mutant(
        "architecture/transformers.py",
        "head = ends + (embedding if self.tied_head else 0)",
        "head = ends",
        "a tied head without the embedding's weights",
        SHAPE,
    ),
    Mutant(
        "architecture/transformers.py",
        "self.lora.rank * sum(shape)",
        "self.lora.rank * shape[0]",
        "adapters without their second matrix",
        SHAPE,
    ),
    Mutant(
        "architecture/transformers.py",
        "not in ROUTERS",
        'not in ("x",)',
        "adapters of routers",
        SHAPE,
    ),
    Mutant(
        "architecture/transformers.py",
        "zlib.crc32(self.settings.encode())",
        "0",
        "costs of models with other settings",
        SHAPE,
    ),
    Mutant(
        "models/foreign_attention.py",
        "distances >= (n_tokens if",
        "distances > (n_tokens if",
        "a window one key too wide",
        ATTENTION,
    ),
    Mutant(
        "models/foreign_attention.py",
        "window is not None and window >= longest",
        "window is not None and window >= longest - 1",
        "a window left out too early",
        ATTENTION,
    ),
    Mutant(
        "models/foreign_attention.py",
        "(cap * scores.tanh() + bias)",
        "(scores.tanh() + bias)",
        "soft caps without their factor",
        ATTENTION,
    ),
    Mutant(
        "models/foreign_attention.py",
        "_DOCUMENTS.set(documents)",
        "_DOCUMENTS.set(None)",
        "attention across documents",
        STAGE,
    ),
    Mutant(
        "models/foreign_attention.py",
        "isinstance(value, Tensor) or value",
        "isinstance(value, int) and value",
        "options that are left out silently",
        ATTENTION,
    ),
    Mutant(
        "models/transformers.py",
        "            hidden = current.activation  #",
        "            pass  #",
        "hidden states scaled once more on every stage",
        STAGE,
    ),
    Mutant(
        "models/transformers.py",
        "is_end = index + 1 >= self._layers.stop and not self.is_last",
        "is_end = False",
        "a norm that is not there",
        STAGE,
    ),
    Mutant(
        "models/transformers.py",
        "return recomputed(function, hidden)",
        "return function(hidden)",
        "nothing recomputed",
        STAGE,
    ),
    Mutant(
        "models/transformers.py",
        "self._vectors.bias is None and is_plain(self._alone)",
        "True",
        "logits without their cap or scale",
        STAGE,
    ),
    Mutant(
        "models/transformers.py",
        "        self._probe(shape)\n",
        "",
        "attention that is only refused in the first pass",
        FOLDER,
    ),
    Mutant(
        "models/foreign_model.py",
        "return args[0].double()",
        "return func(*args)",
        "float64 rounded to float32",
        STAGE,
    ),
    Mutant(
        "models/foreign_model.py",
        "    _check_weights(found, shape)\n",
        "",
        "weights that the files do not have",
        FOLDER,
    ),
    Mutant(
        "models/foreign_model.py",
        "for i in kept}",
        "for i in range(len(self.layers))}",
        "layers of other stages",
        STAGE,
    ),
    Mutant(
        "training/huggingface/any_decoder.py",
        '("w1", "w3")',
        '("w3", "w1")',
        "gates of experts in place of values",
        STAGE,
    ),
    Mutant(
        "training/huggingface/read_rows.py",
        "i * n_rows + row",
        "i * n_rows",
        "experts read from their first row",
        FOLDER,
    ),
    Mutant(
        "training/huggingface/write_tensors.py",
        "read(name, i, i + 1)[0, row :",
        "read(name, i, i + 1)[0, 0 :",
        "the first rows of every expert",
        FOLDER,
    ),
    Mutant(
        "training/huggingface/any_decoder.py",
        "or settings.flag(",
        "and settings.flag(",
        "tied heads",
        FOLDER,
    ),
    Mutant(
        "training/huggingface/describe_model.py",
        "                _check_layers(origin.shape)\n",
        "                pass\n",
        "a model whose layers were not looked at",
        ("tests/cli/test_inspect_verb.py",),
    ),
    Mutant(
        "training/huggingface/describe_model.py",
        "    n -= sum(",
        "    sum(",
        "tied weights counted twice",
        ("tests/cli/test_inspect_verb.py",),
    ),
)
