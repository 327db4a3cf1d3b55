"""Reader of TOML files into an `ExperimentConfig`."""

import tomllib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, get_args

import tomli_w
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.errors import InputError, did_you_mean, quoted
from dynapipe_hpc.data.input_file import read_text
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.config_keys import key_tables
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.training.config import LENGTHS, PreferenceObjective
from dynapipe_hpc.training.huggingface.origin import Origin, find_origin, has_another_family

Tables = dict[str, Any]


class Source(NamedTuple):
    """A source of values, table by table; its name is a file's with a colon, or an option."""

    name: str
    tables: Tables

    def says(self, keys: Sequence[str]) -> bool:
        node: Any = self.tables
        for key in keys:
            if not isinstance(node, dict):
                return True  # an entry of a list
            if key not in node:
                return False
            node = node[key]
        return True


def explain(path: Path, sources: Sequence[Source], tables: Tables, error: ValidationError) -> str:
    """A line per error of the merged `tables`: file or option, key, value, and pydantic's message.

    `sources` ascend in priority; `path` is named if an error spans keys or a key is missing.
    """
    # A list counts as too short only because its entries have errors.
    errors = [e for e in error.errors() if not (e["type"] == "too_short" and e["input"])]
    lines = [_explain(path, sources, tables, each) for each in errors]
    return "\n".join(dict.fromkeys(lines))  # each kind to choose from has an error


def _explain(path: Path, sources: Sequence[Source], tables: Tables, detail: ErrorDetails) -> str:
    keys, chosen = _spelled(tables, detail)
    value, kind, context = detail["input"], detail["type"], detail.get("ctx", {})
    if kind in ("truth", "union_tag_invalid"):  # found in a table, before its keys are looked at
        last = context.get("key") or context["discriminator"].strip("'")
        keys, value = (*keys, last), value[last]
    key = ".".join(keys)
    source = next((each.name for each in reversed(sources) if each.says(keys)), f"{path}:")
    match kind:
        case "extra_forbidden":
            return f"{source} unknown key '{key}'{_hint(keys, chosen)}"
        case "missing":
            return f"{path}: {key} is missing"
        case "union_tag_not_found":
            return f"{path}: {key}.{context['discriminator'].strip(chr(39))} is missing"
        case "value_error":
            where = f"{path}: {key}".removesuffix(": ")
            return f"{where}{_shown(value)}: {context['error']}"
    return f"{source} {key}{_shown(value)}: {detail['msg']}"


def _spelled(tables: Tables, detail: ErrorDetails) -> tuple[tuple[str, ...], str]:
    """Keys as the file spells them, and the chosen variant of the last table, if it has any.

    The location of an error also has the variant of a table, and the kind of a value, as keys.
    """
    node: Any = tables
    keys, chosen = list[str](), ""
    *_, last = detail["loc"] or ("",)
    for key in detail["loc"]:
        is_missing = detail["type"] == "missing" and key == last
        if isinstance(node, dict) and isinstance(key, str) and (key in node or is_missing):
            node = node.get(key)
            keys.append(key)
        elif isinstance(node, list | tuple) and isinstance(key, int):
            node = node[key] if key < len(node) else None
            keys.append(str(key))
        elif isinstance(node, dict):
            chosen = str(key)
    return tuple(keys), chosen


def _hint(keys: Sequence[str], chosen: str) -> str:
    *path, name = keys
    below = "".join(f"{part}." for part in path if not part.isdigit())
    variants = [each for each in key_tables() if f"{each.path}." == below]
    inside = [t.path.removeprefix(below) for t in key_tables() if t.path.startswith(below)]
    known = [k.name for each in variants if each.chosen in ("", chosen) for k in each.keys]
    known += [each for each in inside if "." not in each]
    where = f" of {variants[0].tag} '{chosen}'" if chosen and variants else ""
    return where + (
        did_you_mean(name, known) or f"; known keys here: {', '.join(dict.fromkeys(known))}"
    )


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return f" = {str(value).lower()}"
    return f" = {quoted(value)}" if isinstance(value, str | int | float | list) else ""


MAX_BYTES = 1 << 16
MAX_PARENTS = 32
ALTERNATIVES = {
    "training": LENGTHS,
    "data": ("dataset", "mixture", "lengths"),
    "evaluation": ("dataset", "held_out"),
}
"""Keys that exclude each other, by table."""


class ConfigError(InputError):
    """A configuration that cannot be used."""


def load_config(path: Path, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """Reads a configuration file.

    A file may name one parent (`extends = "other.toml"`, relative to itself), whose keys it
    replaces one by one; a table with another `kind` or `rule` replaces the parent's table entirely,
    each of `training.iterations`, `epochs` and `tokens` replaces whichever the parent has, and so
    do `data.dataset`, `data.mixture` and `data.lengths`, and `evaluation.dataset` and
    `evaluation.held_out`. Sizes of the model that no file gives are taken from the model that
    `model.init_from` names.

    `overrides`: Texts `table.key=value`, with the value in TOML; they take precedence.
    """
    sources = [*_read(path), *(Source("--set", _parse_override(each)) for each in overrides)]
    tables: Tables = {}
    for source in sources:
        _forget_alternatives(tables, source.tables)
        _merge(tables, source.tables)
    try:
        origin = sizes_of_origin(tables.get("model"))
    except InputError as error:
        raise ConfigError(f"{path}: model.init_from: {error}") from None
    if origin is not None:
        sources = [origin, *sources]
        tables["model"] = {**origin.tables["model"], **tables["model"]}
    try:
        return ExperimentConfig.model_validate(tables)
    except ValidationError as error:
        # A model to begin with would have the sizes, and is needed for the reference.
        training = tables.get("training")
        objective: Any = training.get("objective") if isinstance(training, dict) else ""
        lacks = [e["loc"][0] == "model" for e in error.errors() if e["type"] == "missing"]
        if origin is None and any(lacks) and objective in get_args(PreferenceObjective):
            raise ConfigError(f"{path}: {lacking_origin_error(objective)}") from None
        raise ConfigError(explain(path, sources, tables, error)) from None


def with_cost_table(config: ExperimentConfig, path: Path) -> ExperimentConfig:
    given = config.planner.cost
    settings = given if isinstance(given, ProfiledConfig) else ProfiledConfig(path=path)
    cost = settings.model_copy(update={"path": path})
    planner = config.planner.model_copy(update={"cost": cost})
    return config.model_copy(update={"planner": planner})


def with_tables(config: ExperimentConfig, name: str, tables: Tables) -> ExperimentConfig:
    """The configuration with tables overridden, as by a file that extends it; [study] removed.

    For another number of stages layers are placed again, unless the tables place them.
    """
    merged = config.model_dump(exclude_none=True, exclude={"study"})
    # Another family has defaults of its own.
    model = config.model.model_dump(exclude_none=True, exclude_defaults=True)
    merged["model"] = {"family": config.model.family, **model}
    _merge(merged, tables)
    is_placed = "layers_per_stage" in tables.get("model", {})
    if merged["cluster"]["n_stages"] != config.cluster.n_stages and not is_placed:
        merged["model"].pop("layers_per_stage", None)
    try:
        return ExperimentConfig.model_validate(merged)
    except ValidationError as error:
        sources = [Source(f"{name}:", tables)]
        raise ConfigError(explain(Path(name), sources, merged, error)) from None


def to_toml(config: ExperimentConfig, placement: Placement | None = None) -> str:
    """The configuration with every default filled in, as a file that loads to the same values."""
    if placement is not None:
        layers = {"layers_per_stage": placement.layers_per_stage}
        model = config.model.model_copy(update=layers)
        config = config.model_copy(update={"model": model})
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))


def _read(path: Path, parents: tuple[Path, ...] = ()) -> list[Source]:
    text = read_text(path, MAX_BYTES)
    try:
        tables: Tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # from long numbers, and deeply nested tables
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    parent = tables.pop("extends", None)
    source = Source(f"{path}:", tables)
    if parent is None:
        return [source]
    if not isinstance(parent, str) or not parent:
        raise ConfigError(f"{path}: extends must be the name of one file, got {quoted(parent)}")
    if path.resolve() in parents:
        raise ConfigError(f"{path}: extends itself through {' -> '.join(p.name for p in parents)}")
    if len(parents) == MAX_PARENTS:
        raise ConfigError(
            f"{path}: is extended through a chain of {len(parents)} files, which is the limit"
        )
    return [*_read(path.parent / parent, (*parents, path.resolve())), source]


def _forget_alternatives(below: Tables, above: Tables) -> None:
    for table, keys in ALTERNATIVES.items():
        lower, upper = below.get(table), above.get(table)
        if isinstance(lower, dict) and isinstance(upper, dict) and any(k in upper for k in keys):
            for key in keys:
                lower.pop(key, None)


def _merge(below: Tables, above: Tables) -> None:
    for key, value in above.items():
        inherited = below.get(key)
        if isinstance(value, dict) and isinstance(inherited, dict):
            tags = [tag for tag in ("kind", "rule") if tag in value]
            if all(inherited.get(tag) == value[tag] for tag in tags):
                _merge(inherited, value)
                continue
        below[key] = value


def _parse_override(override: str) -> Tables:
    key, separator, text = override.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not separator or not all(parts):
        raise ConfigError(f"--set {override}: expected table.key=value")
    value: Any = text  # a bare word is a string: quoting it twice on a shell is a nuisance
    with suppress(ValueError, RecursionError):
        table = tomllib.loads(f"value = {text}")
        value = table["value"] if len(table) == 1 else text
    for part in reversed(parts):
        value = {part: value}
    return dict(value)


def sizes_of_origin(model: Any) -> Source | None:
    """The values that a [model] table may leave out; None if it names no model to start from."""
    if not isinstance(model, dict):
        return None
    path = model.get("init_from")
    if not isinstance(path, str) or not path:
        return None
    origin = find_origin(Path(path), model.get("family"))
    if origin.shape.lora is not None:
        raise InputError(
            f"{path}: holds adapters of another model; merge them into it (dynapipe-hpc export "
            f"{path} -o FOLDER --base MODEL), and name FOLDER"
        )
    if differences := _differences(model, origin):
        raise InputError(
            f"{path}: is another model: {'; '.join(differences)}; leave these keys of [model] out, "
            "and they are taken from there"
        )
    model["init_from"] = str(origin.folder)
    return Source(f"{origin.folder}:", {"model": origin.values})


def lacking_origin_error(objective: str) -> InputError:
    return InputError(
        f'training.objective is "{objective}", but there is no model.init_from, whose weights are '
        "the reference; name the model to begin with"
    )


def more_rows(n_rows: int) -> str:
    """Advice on a Hugging Face model whose embedding has more rows, for messages."""
    return (
        f"add rows with transformers: model.resize_token_embeddings({n_rows}), then "
        "save_pretrained in a new folder, together with the tokenizer, and name that in "
        "model.init_from"
    )


def _differences(model: dict[str, Any], origin: Origin) -> list[str]:
    differences = []
    known = {**origin.shape.sizes, **origin.shape.fingerprint}  # as if the table left nothing out
    for key in model.keys() & known.keys() - {"lora", "dropout"}:
        given, stored = model[key], known[key]
        if key == "max_tokens" and origin.longest is not None:
            if isinstance(given, int) and given > origin.longest:
                remedy = 'family = "transformers" computes longer rows'
                advice = (
                    f" ({remedy})" if has_another_family(origin.mapping, origin.settings) else ""
                )
                most = origin.longest_text
                differences.append(f"{key} may be at most {most}, not {given}{advice}")
        elif key == "vocab_size" and isinstance(given, int) and given > stored:
            differences.append(f"vocab_size is {stored} there, not {given} ({more_rows(given)})")
        elif given != stored:
            differences.append(f"{key} is {quoted(stored)} there, not {quoted(given)}")
    return sorted(differences)
