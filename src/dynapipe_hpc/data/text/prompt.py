"""Prompts: the tokens that a model is given to continue."""

from collections.abc import Sequence
from pathlib import Path

from dynapipe_hpc.data.text.recipe import recipe_of
from dynapipe_hpc.data.text.record_format import RecordFormat
from dynapipe_hpc.data.text.tokenizer_files import read_tokenizer
from dynapipe_hpc.data.text.tokenizers import Tokenizer, load_tokenizer


def prompt_tokens(
    text: str, tokenizer_files: Sequence[Path], *, chat: bool
) -> tuple[Tokenizer, list[int]]:
    """A tokenizer, and the tokens of a text without a start token.

    Args:
        text: The text.
        tokenizer_files: Folder or files of the tokenizer, see `read_tokenizer`.
        chat: Whether the text is a message of the user that the assistant is to answer, as the
            tokenizer's chat template renders it.

    Raises:
        InputError: The tokenizer cannot be used, or has no chat template.
    """
    files = read_tokenizer(tokenizer_files)
    tokenizer = load_tokenizer(files)
    if not chat:
        return tokenizer, list(tokenizer.encode([text])[0])
    recipe = recipe_of(tokenizer, files, RecordFormat.MESSAGES)
    prompt = recipe.template.asking(text) if recipe.template else text
    [(tokens, _)] = recipe.tokenizer.encode_marked([prompt], [[]])
    return recipe.tokenizer, list(tokens)
