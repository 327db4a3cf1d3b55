"""The recipe by which lines of text become samples, and a prompt becomes tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.input_file import json_value
from dynapipe_hpc.data.text.chat_template import DEFAULT, ChatTemplate
from dynapipe_hpc.data.text.chat_turns import Turns
from dynapipe_hpc.data.text.open_lines import BYTE_ORDER_MARK, STDIN, read_blocks
from dynapipe_hpc.data.text.record_fields import RecordFormat
from dynapipe_hpc.data.text.records import PAIR_FIELDS, PairFields, formats_of_record
from dynapipe_hpc.data.text.tokenizer_files import read_template, read_tokenizer
from dynapipe_hpc.data.text.tokenizers import Tokenizer, load_tokenizer


@dataclass(frozen=True, slots=True)
class Recipe:
    """Rules by which lines become samples; the same for all lines of all sources."""

    tokenizer: Tokenizer
    format: RecordFormat = RecordFormat.PAIRS
    fields: PairFields = PAIR_FIELDS
    template: ChatTemplate | None = None  # None for pairs that are tokenized as they are
    turns: Turns = Turns.EACH  # samples of conversations whose turns change when more turns follow


def recipe_of(
    tokenizer: Tokenizer,
    record_format: RecordFormat,
    *,
    fields: PairFields = PAIR_FIELDS,
    template: Path | None = None,
    turns: Turns = Turns.EACH,
    names_start: bool = False,
) -> Recipe:
    """The recipe for records of a format.

    Conversations are rendered by the named chat template, or else by the tokenizer's. Pairs
    are rendered only by a named template, as a message of the user and one of the assistant.
    Rendered text begins with what its template writes, so no start token comes before it, unless
    one is named, or the tokenizer belongs to an encoder-decoder model.

    `turns`: Samples of conversations whose turns change when more turns follow. `names_start`:
    Whether the start token was named rather than derived.
    """
    files = tokenizer.files
    chat = None
    if template is not None:
        chat = ChatTemplate(str(template), {DEFAULT: read_template(template)}, files.names)
    elif files.templates:
        chat = ChatTemplate(f"the chat template of {files.name}", files.templates, files.names)
    if record_format is RecordFormat.TEXT and template is not None:
        raise InputError(f"--template {template}: plain text has no messages; leave it out")
    if record_format.has_pairs and turns is not Turns.EACH:
        raise InputError(f"--turns {turns}: in preference pairs only answers count; leave it out")
    if not record_format.needs_template and template is None:
        if turns is not Turns.EACH:
            raise InputError(f"--turns {turns}: is for chat templates only; leave it out")
        return Recipe(tokenizer, record_format, fields)
    if chat is None:
        raise InputError(
            "conversations need a chat template: --tokenizer FOLDER of a model that has one, or "
            "preprocess --template FILE"
        )
    chat.check()
    if not names_start and tokenizer.input_end_id is None:
        tokenizer = replace(tokenizer, start_id=None)
    return Recipe(tokenizer, record_format, fields, chat, turns)


def format_of_sources(sources: Sequence[Path], fields: PairFields) -> RecordFormat:
    """The format of the records of all sources, by the first line of each.

    Looking into a pipe would lose what is read; pipes are taken to have the format of the other
    sources, or pairs.
    """
    formats: dict[RecordFormat, Path] = {}
    for source in sources:
        if source == STDIN or not source.is_file():
            continue
        lines = (line for block in read_blocks(source) for line in block.lines)
        texts = (line.removeprefix(BYTE_ORDER_MARK) for line in lines)
        # What is no JSON is refused with its number when the lines are read.
        record = json_value(next(filter(bytes.strip, texts), b""))
        for shown in formats_of_record(record, fields)[:1]:
            formats.setdefault(shown, source)
    if len(formats) > 1:
        (one, path), (other, other_path), *_ = formats.items()
        raise InputError(
            f"{path} holds {one}, {other_path} holds {other}; make a dataset of each, and mix them "
            "in the configuration (data.mixture), or name one: --format"
        )
    return next(iter(formats), RecordFormat.PAIRS)


def prompt_tokens(text: str, tokenizer_path: Path, *, chat: bool) -> tuple[Tokenizer, list[int]]:
    """A tokenizer, and the tokens of a text without a start token.

    `chat`: Whether the text is a message of the user that the assistant is to answer, as the
    tokenizer's chat template renders it.
    """
    tokenizer = load_tokenizer(read_tokenizer(tokenizer_path))
    if not chat:
        return tokenizer, list(tokenizer.encode(text, special_tokens=False)[0])
    recipe = recipe_of(tokenizer, RecordFormat.MESSAGES)
    prompt = recipe.template.asking(text) if recipe.template else text
    return recipe.tokenizer, list(recipe.tokenizer.encode(prompt)[0])
