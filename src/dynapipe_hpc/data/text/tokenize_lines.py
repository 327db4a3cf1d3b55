"""Tokenizing of JSON lines into a block of samples; runs in worker processes."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.spans import Span
from dynapipe_hpc.data.text.chat_template import ChatTemplate, Rendered
from dynapipe_hpc.data.text.chat_turns import Turns, TurnSamples, start_of_turn, turn_samples
from dynapipe_hpc.data.text.conversation import Conversation, check_no_context
from dynapipe_hpc.data.text.open_lines import BYTE_ORDER_MARK
from dynapipe_hpc.data.text.preferences import ChatPreference, TextPreference
from dynapipe_hpc.data.text.recipe import Recipe
from dynapipe_hpc.data.text.record_fields import kind_of, texts_in
from dynapipe_hpc.data.text.record_format import RecordFormat
from dynapipe_hpc.data.text.records import FormatError, Pair, check_first_line, sample_of, task_of
from dynapipe_hpc.data.text.text_part import MAX_LINE_BYTES, Lines, TextPart
from dynapipe_hpc.data.text.tokenizers import Marked, Tokenizer, encode_answers
from dynapipe_hpc.data.token_block import TokenBlock


class ChatSample(NamedTuple):
    """Tokens of a conversation; the target begins with the last trained turn."""

    inputs: Sequence[int]
    targets: Sequence[int]
    spans: list[Span]


def render(
    conversation: Conversation, template: ChatTemplate, turns: Turns, tokenizer: Tokenizer
) -> TurnSamples:
    check_special_tokens(conversation, tokenizer)
    return turn_samples(conversation, template.apply(conversation), turns)


def check_special_tokens(conversation: Conversation, tokenizer: Tokenizer) -> None:
    """Refuses messages that spell a special token, unless they may."""
    if tokenizer.special_tokens:
        return
    for text in texts_in(conversation.all_values):
        if (token := tokenizer.special_in(text)) is not None:
            raise InputError(
                f"a message spells the special token {token}; --special-tokens accepts it"
            )


def turn_end_ids(sample: Rendered, tokenizer: Tokenizer) -> set[int]:
    """Ids of the added tokens that end trained turns; blank space may follow them."""
    ids: set[int] = set()
    for end in sample.turn_ends:
        turn = sample.text[:end].rstrip()
        token_id = tokenizer.last_added_id(turn)
        if token_id is not None and any(first < len(turn) <= last for first, last in sample.spans):
            ids.add(token_id)
    return ids


def chat_sample(ids: Sequence[int], spans: Sequence[Span], tokenizer: Tokenizer) -> ChatSample:
    """Cuts the tokens of a conversation into input and target."""
    merged: list[Span] = []
    for start, end in spans:
        if start == end:  # text of which the tokenizer makes no token
            continue
        if merged and start < merged[-1][1]:  # a token of both
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    if not merged:
        raise InputError("no token of the assistant, so there is nothing to learn")
    cut, end = merged[-1]
    if tokenizer.start_id is None and cut == 0 and end == 1:
        raise InputError("only the first token is of the assistant, and nothing predicts it")
    inputs, targets = list(ids[:cut]), ids[cut:]
    if tokenizer.input_end_id is not None:
        inputs.append(tokenizer.input_end_id)
        merged[-1] = (cut + 1, end + 1)
    return ChatSample(inputs, targets, merged)


class PairSample(NamedTuple):
    """Tokens of a preference pair; both answers follow the prompt."""

    prompt: Sequence[int]
    chosen: Sequence[int]
    rejected: Sequence[int]


class RenderedPair(NamedTuple):
    """Texts of a preference pair, each with the span of its answer."""

    chosen: Rendered
    rejected: Rendered


def render_pair(pair: ChatPreference, template: ChatTemplate, tokenizer: Tokenizer) -> RenderedPair:
    """Texts of both conversations, whose answers begin after the generation prompt.

    An answer is all that follows the prompt, messages of others than the assistant included.
    """
    texts = []
    for conversation in (pair.chosen, pair.rejected):
        check_special_tokens(conversation, tokenizer)
        chat = template.apply(conversation)
        text, start = chat.whole().text, start_of_turn(chat, pair.n_shared).position
        if text[:start] != chat.until(pair.n_shared + 1).text[:start]:
            raise InputError(
                f"{template.name} writes messages otherwise when others follow, so that an answer "
                "of several messages does not go on from its prompt; keep one message of each "
                "answer, or name another template: preprocess --template FILE"
            )
        if start >= len(text):
            raise InputError(f"{template.name} shows no text of an answer")
        texts.append(Rendered(text, [(start, len(text))], (len(text),)))
    chosen, rejected = texts
    prompts = [text.text[: text.spans[0][0]] for text in texts]
    if prompts[0] != prompts[1]:
        raise InputError(f"{template.name} writes the prompt otherwise before the other answer")
    return RenderedPair(chosen, rejected)


def tokens_of_texts(
    pairs: Sequence[TextPreference], tokenizer: Tokenizer
) -> list[PairSample | InputError]:
    """Tokens of pairs of texts, whose answers end with the end-of-sequence token."""
    texts = [(pair.prompt, answer) for pair in pairs for answer in (pair.chosen, pair.rejected)]
    answers = encode_answers(texts, tokenizer)
    return [
        _checked(_pair_sample(*both), tokenizer)
        for both in zip(answers[::2], answers[1::2], strict=True)
    ]


def tokens_of_rendered(
    pairs: Sequence[RenderedPair], tokenizer: Tokenizer
) -> list[PairSample | InputError]:
    """Tokens of rendered pairs, each text split as a whole.

    The prompt is what both begin with, up to the first token of an answer.
    """
    every = [text for pair in pairs for text in pair]
    marked = tokenizer.encode_marked([text.text for text in every], [text.spans for text in every])
    starts = [(ids, start) for ids, [(start, _)] in marked]
    return [
        _checked(_pair_sample(*both), tokenizer)
        for both in zip(starts[::2], starts[1::2], strict=True)
    ]


def _pair_sample(
    chosen: tuple[Sequence[int], int], rejected: tuple[Sequence[int], int]
) -> PairSample:
    (one, cut), (other, other_cut) = chosen, rejected
    most = min(cut, other_cut)
    n = next((i for i in range(most) if one[i] != other[i]), most)
    return PairSample(one[:n], one[n:], other[n:])


def _checked(sample: PairSample, tokenizer: Tokenizer) -> PairSample | InputError:
    if not sample.chosen or not sample.rejected or list(sample.chosen) == list(sample.rejected):
        return InputError("the tokens of both answers are the same, or there are none")
    if tokenizer.start_id is None and not sample.prompt:
        return InputError(
            "the prompt has no token, and there is no start token before the answers; give the "
            "record a prompt, or name a token: --start TOKEN"
        )
    return sample


_SPELLED = "a special token is spelled, and stays text; --special-tokens makes it that token"


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is not a valid sample.

    `number`: Number of the line in the part, from 1. `is_format`: Whether the complete file is of
    another format, and the reason names the remedy.
    """

    part: TextPart
    number: int
    reason: str
    is_format: bool = False

    def describe(self) -> str:
        """File, line number in the file, and reason, as a message."""
        return f"{self.part.path}:{self.part.lines_before() + self.number}: {self.reason}"


@dataclass(frozen=True, slots=True)
class TokenizedLines:
    """The result of tokenizing some lines.

    `n_bytes`: Size in bytes of all lines in the file. `n_records`: Number of the good lines; a
    conversation may make several samples.
    """

    block: TokenBlock
    n_bytes: int
    n_records: int
    bad: tuple[BadLine, ...]
    notes: Counter[str]


@dataclass(frozen=True, slots=True)
class _Text:
    """Texts of a line to tokenize: a pair as it is, or texts that a template made."""

    number: int
    task: str
    content: Pair | TurnSamples | TextPreference | RenderedPair


def tokenize_lines(lines: Lines, recipe: Recipe) -> TokenizedLines:
    """Makes samples of every line that is not blank.

    Targets of pairs end with the end-of-sequence token.
    """
    texts: list[_Text] = []
    bad: list[BadLine] = []

    def leave_out(number: int, error: InputError) -> None:
        bad.append(BadLine(lines.part, number, str(error), isinstance(error, FormatError)))

    is_first = lines.first == 1 and lines.part.start == 0
    for number, content in enumerate(lines.lines, start=lines.first):
        line = content.removeprefix(BYTE_ORDER_MARK) if is_first else content
        if not line.strip():
            continue
        try:
            if is_first:
                is_first = False
                check_first_line(lines.part.path, line, recipe.format, recipe.fields)
            texts.append(_text_of(number, _parse(line), recipe))
        except InputError as error:
            leave_out(number, error)
        except RecursionError:
            leave_out(number, InputError("values are nested too deeply"))
    samples: list[tuple[Sequence[int], Sequence[int], str]] = []
    rejected: list[Sequence[int]] = []
    spans: list[list[Span]] = []
    notes: Counter[str] = Counter()
    end_ids: set[int] = set()
    n_records = 0
    for text, made in zip(texts, _tokenized(texts, recipe), strict=True):
        if isinstance(made, InputError):
            leave_out(text.number, made)
            continue
        n_records += 1
        if _spells_special_token(text.content, recipe.tokenizer):
            notes[_SPELLED] += 1
        if isinstance(made, PairSample):
            samples.append((made.prompt, made.chosen, text.task))
            rejected.append(made.rejected)
            if isinstance(text.content, RenderedPair):
                for answer in text.content:
                    end_ids |= turn_end_ids(answer, recipe.tokenizer)
            continue
        samples += [(sample.inputs, sample.targets, text.task) for sample in made]
        spans += [sample.spans for sample in made]
        if isinstance(text.content, TurnSamples):
            notes.update(text.content.notes)
            for rendered in text.content.samples:
                end_ids |= turn_end_ids(rendered, recipe.tokenizer)
    bad.sort(key=lambda line: line.number)
    block = TokenBlock.from_samples(
        samples,
        recipe.tokenizer.vocab_size,
        spans,
        end_ids,
        rejected=rejected if recipe.format.has_pairs else None,
    )
    return TokenizedLines(block, lines.n_bytes, n_records, tuple(bad), notes)


def _spells_special_token(content: object, tokenizer: Tokenizer) -> bool:
    match content:
        case Pair(inputs=inputs, targets=targets):
            texts = [inputs, targets]
        case TextPreference(prompt=prompt, chosen=chosen, rejected=rejected):
            texts = [prompt, chosen, rejected]
        case _:
            return False
    return not tokenizer.special_tokens and any(map(tokenizer.special_in, texts))


def _text_of(number: int, record: dict[str, Any], recipe: Recipe) -> _Text:
    sample, task = sample_of(record, recipe.format, recipe.fields), task_of(record)
    if isinstance(sample, TextPreference | ChatPreference):
        return _Text(number, task, _preference_of(sample, record, recipe))
    if recipe.template is not None:
        chat = sample.as_conversation() if isinstance(sample, Pair) else sample
        samples = render(chat, recipe.template, recipe.turns, recipe.tokenizer)
        return _Text(number, task, samples)
    if not isinstance(sample, Pair):
        raise InputError("a conversation needs a chat template: preprocess --template FILE")
    if recipe.format is not RecordFormat.TEXT:
        check_no_context(record)
    return _Text(number, task, sample)


def _preference_of(
    pair: TextPreference | ChatPreference, record: dict[str, Any], recipe: Recipe
) -> TextPreference | RenderedPair:
    """The texts of a preference pair, as they are or as a template writes them."""
    if recipe.template is not None:
        chats = pair.as_chats() if isinstance(pair, TextPreference) else pair
        return render_pair(chats, recipe.template, recipe.tokenizer)
    if not isinstance(pair, TextPreference):
        raise InputError("messages need a chat template: preprocess --template FILE")
    check_no_context(record)
    return pair


def _tokenized(
    texts: Sequence[_Text], recipe: Recipe
) -> Sequence[list[ChatSample] | PairSample | InputError]:
    """Samples of all texts, in order; of one that has a bad sample, the reason."""
    tokenizer = recipe.tokenizer
    if recipe.format.has_pairs:
        plain = [text.content for text in texts if isinstance(text.content, TextPreference)]
        rendered_pairs = [text.content for text in texts if isinstance(text.content, RenderedPair)]
        return [
            *tokens_of_texts(plain, tokenizer),
            *tokens_of_rendered(rendered_pairs, tokenizer),
        ]
    if recipe.template is None:
        pairs = [text.content for text in texts if isinstance(text.content, Pair)]
        answers = encode_answers([(pair.inputs, pair.targets) for pair in pairs], tokenizer)
        return [[ChatSample(ids[:start], ids[start:], [])] for ids, start in answers]
    rendered = [text.content.samples for text in texts if isinstance(text.content, TurnSamples)]
    every = [sample for samples in rendered for sample in samples]
    marked = iter(tokenizer.encode_marked([r.text for r in every], [r.spans for r in every]))
    return [_chat_samples([next(marked) for _ in samples], tokenizer) for samples in rendered]


def _chat_samples(marked: Sequence[Marked], tokenizer: Tokenizer) -> list[ChatSample] | InputError:
    try:
        return [chat_sample(ids, spans, tokenizer) for ids, spans in marked]
    except InputError as error:
        return error


def _parse(line: bytes) -> dict[str, Any]:
    if len(line) > MAX_LINE_BYTES:
        raise InputError(f"longer than {MAX_LINE_BYTES:,} bytes")
    try:
        record = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 at byte {error.start + 1} of the line") from None
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON ({error.msg} at column {error.colno})") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON ({error})") from None
    if not isinstance(record, dict):
        raise InputError(f"not a JSON object but {kind_of(record)}")
    return record
