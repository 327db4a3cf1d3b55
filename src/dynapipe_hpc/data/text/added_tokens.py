"""Tokens that the files beside a `tokenizer.json` add to it, as `transformers` adds them."""

from collections.abc import Iterator, Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken

from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.data.text.default_ends import token_text

TABLE = "added_tokens_decoder"
"""Key of `tokenizer_config.json`: tokens by id. With it, older files do not count."""
_NAMED = tuple(f"{kind}_token" for kind in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_EXTRA = ("extra_special_tokens", "additional_special_tokens")
_SPECIFIC = "model_specific_special_tokens"
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def add_tokens(
    model: tokenizers.Tokenizer, config: Mapping[str, Any], older_ids: Mapping[str, Any]
) -> list[str]:
    """Adds the tokens that a folder's other files have, or have with other flags.

    Args:
        model: The tokenizer.
        config: Content of `tokenizer_config.json`, or of older files.
        older_ids: Content of `added_tokens.json`, ids by token, where it counts; else empty.

    Returns:
        The tokens that were added or changed, each with its id and flags as text.
    """
    before = model.get_added_tokens_decoder()
    named = list(_named(config))
    names = {token.content for token in named}
    tokens = _table(config)
    for name, token_id in older_ids.items():
        if token_id not in before:
            tokens.append(AddedToken(name, special=name in names))
    known = {token.content for token in (*before.values(), *tokens)}
    for token in named:
        if token.content not in known and token not in tokens:
            tokens.append(token)
    for token in tokens:
        token.special = token.special or token.content in names
    model.add_tokens(tokens)
    return [
        f"{token_id} {token!r}"
        for token_id, token in sorted(model.get_added_tokens_decoder().items())
        if before.get(token_id) != token
    ]


def token_names(config: Mapping[str, Any]) -> dict[str, str]:
    """Texts of tokens by the names under which templates know them."""
    named = {name: token for name, token in config.items() if name.endswith("_token")}
    for key in (_SPECIFIC, *reversed(_EXTRA)):
        if isinstance(config.get(key), dict):
            named |= config[key]
    texts = {name: token_text(token) for name, token in named.items()}
    return {name: text for name, text in texts.items() if text is not None}


def _table(config: Mapping[str, Any]) -> list[AddedToken]:
    """Tokens of the table in the order of their ids, in which new ones get theirs."""
    table = config.get(TABLE) or {}
    if not isinstance(table, dict) or not all(key.isdecimal() for key in table):
        raise InputError(f"'{TABLE}' is {quoted(table)}, not a JSON object from ids to tokens")
    return [_token(TABLE, table[key]) for key in sorted(table, key=int)]


def _named(config: Mapping[str, Any]) -> Iterator[AddedToken]:
    """Special tokens by their names, then those without one."""
    others = (key for key in config if key.endswith("_token") and key not in _NAMED)
    for key in (*_NAMED, *others):
        if isinstance(config.get(key), str | dict):  # add_bos_token is a flag
            yield _token(key, config[key])
    key = next((key for key in _EXTRA if config.get(key)), _EXTRA[0])
    extra = config.get(key) or []
    for value in extra.values() if isinstance(extra, dict) else extra:
        yield _token(key, value)


def _token(key: str, value: Any) -> AddedToken:
    """A token: text, which is special, or an object with flags.

    Objects of the table, and those of type AddedToken, say themselves whether they are special.
    """
    fields = {"content": value} if isinstance(value, str) else value
    if not isinstance(fields, dict) or not isinstance(content := fields.get("content"), str):
        raise InputError(f"'{key}' has {quoted(value)}, not a token")
    flags = {name: fields[name] for name in _FLAGS if name in fields}
    if key != TABLE and "__type" not in fields:
        flags["special"] = True
    if not all(type(flag) is bool for flag in flags.values()):
        raise InputError(f"'{key}' has {quoted(value)}, with a flag neither true nor false")
    return AddedToken(content, **flags)
