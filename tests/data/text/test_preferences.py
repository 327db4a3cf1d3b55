"""Preference pairs of every format, as samples with two answers."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.examples.chats import CHATML, Record
from tests.examples.tokenized import sides_of

from dynapipe_hpc.data.dataset.dataset_file import DatasetFile
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.text.chat_template import ChatTemplate
from dynapipe_hpc.data.text.open_lines import Lines
from dynapipe_hpc.data.text.preprocess import PreprocessOptions, preprocess
from dynapipe_hpc.data.text.recipe import Recipe, format_of_sources
from dynapipe_hpc.data.text.record_fields import RecordFormat
from dynapipe_hpc.data.text.records import PAIR_FIELDS, PairFields
from dynapipe_hpc.data.text.show_dataset import show_samples
from dynapipe_hpc.data.text.tokenize_lines import TokenizedLines, tokenize_lines
from dynapipe_hpc.data.text.tokenizers import Tokenizer

TEXTS, CHATS = RecordFormat.PREFERENCES, RecordFormat.CHAT_PREFERENCES
EOS = "$"


def user(text: str) -> Record:
    return {"role": "user", "content": text}


def assistant(text: str) -> Record:
    return {"role": "assistant", "content": text}


def tokenized(
    record: Record, record_format: RecordFormat, template: str | None = None
) -> TokenizedLines:
    chat = None if template is None else ChatTemplate("t", {"default": template})
    tokenizer = Tokenizer() if chat is None else Tokenizer(start_id=None)
    recipe = Recipe(tokenizer, record_format, template=chat)
    lines = [json.dumps(record).encode()]
    return tokenize_lines(Lines(Path("in.jsonl"), 1, lines), recipe)


def shown(record: Record, record_format: RecordFormat, template: str | None = None) -> list[str]:
    """Prompt, chosen and rejected answer as text; the end of a sequence is a dollar."""
    made = tokenized(record, record_format, template)
    assert [bad.reason for bad in made.bad] == []
    assert len(made.block.tokens) == 3
    return [text(side) for sides in zip(*sides_of(made.block), strict=True) for side in sides]


def text(tokens: Sequence[int]) -> str:
    return "".join(EOS if token == 256 else chr(token) for token in tokens)


def refusal(record: Record, record_format: RecordFormat, template: str | None = None) -> str:
    made = tokenized(record, record_format, template)
    assert not made.block.tasks
    [bad] = made.bad
    return bad.reason


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"prompt": "2+2?", "chosen": "4", "rejected": "5"}, ["2+2?", "4$", "5$"]),
        ({"prompt": "", "chosen": "4", "rejected": "5"}, ["", "4$", "5$"]),
        (
            {"instruction": "Add.", "input": "2 2", "chosen": "4", "rejected": "5"},
            ["Add.\n\n2 2", "4$", "5$"],
        ),
        (
            {"chosen": "Human: hi Assistant: hello you", "rejected": "Human: hi Assistant: help"},
            ["Human: hi Assistant:", " hello you$", " help$"],
        ),
        ({"chosen": "apple", "rejected": "apply"}, ["", "apple$", "apply$"]),
        (
            {
                "instruction": "Say",
                "completions": [
                    {"response": "b", "overall_score": 5},
                    {"response": "c", "overall_score": 7.5},
                    {"response": "a", "overall_score": 1},
                ],
            },
            ["Say", "c$", "a$"],
        ),
    ],
    ids=["explicit", "empty", "alpaca", "implicit", "nothing shared", "ratings"],
)
def test_texts_become_a_prompt_and_two_answers(record: Record, expected: list[str]) -> None:
    assert shown(record, TEXTS) == expected
    assert tokenized(record, TEXTS).block.tasks == ("default",)


BOTH: dict[str, Any] = {"chosen": [assistant("a")], "rejected": [assistant("b")]}
CHAT = ["<user>hi</><assistant>", "good</>", "bad</>"]
ANSWERS: Record = {"chosen": [assistant("good")], "rejected": [assistant("bad")]}
WHOLE: Record = {name: [user("hi"), *answer] for name, answer in ANSWERS.items()}
OF_SHAREGPT: Record = {
    "conversations": [{"from": "human", "value": "hi"}],
    "chosen": {"from": "gpt", "value": "good"},
    "rejected": {"from": "gpt", "value": "bad"},
}


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": [user("hi")], **ANSWERS},
        WHOLE,
        {"prompt": "hi", **WHOLE},
        {"prompt": "hi", **ANSWERS},
        OF_SHAREGPT,
        {"messages": [user("hi")], "chosen": "good", "rejected": "bad"},
        {"prompt": [user("hi")], "messages": WHOLE["chosen"], **ANSWERS},
        {"messages": WHOLE["chosen"], **WHOLE},
        {"prompt": [user("hi")], **WHOLE},
        {"prompt": "Hi.", **WHOLE},
    ],
    ids=[
        *("explicit", "implicit", "UltraFeedback", "prompt as text", "ShareGPT", "answers as text"),
        *("prompt beside messages", "messages as chosen", "prompt in answers", "other words"),
    ],
)
def test_messages_become_a_prompt_and_two_answers(record: Record) -> None:
    assert shown(record, CHATS, CHATML) == CHAT


@pytest.mark.parametrize("name", ["question", "query", "input"])
def test_a_prompt_under_another_name_is_not_left_out(name: str) -> None:
    record = {name: "2+2?", "chosen": "It is 4", "rejected": "It is 5"}
    reason = f"field '{name}' is not read, and there is neither a 'prompt' nor an 'instruction'"
    assert refusal(record, TEXTS).startswith(reason)
    assert refusal({**record, "prompt": None}, TEXTS).startswith(reason)
    assert shown({**record, "prompt": "2+2?"}, TEXTS) == ["2+2?", "It is 4$", "It is 5$"]
    assert shown({**record, name: ""}, TEXTS) == ["It is", " 4$", " 5$"]


def test_earlier_turns_and_tools_belong_to_the_prompt() -> None:
    before = [user("a"), assistant("b"), user("c")]
    record = {
        "chosen": [*before, assistant("d")],
        "rejected": [*before, assistant("e")],
        "tools": [{"name": "f"}],
    }
    prompt, chosen, rejected = shown(record, CHATS, CHATML)
    assert prompt.startswith("<tools>")
    assert prompt.endswith("</><user>a</><assistant>b</><user>c</><assistant>")
    assert (chosen, rejected) == ("d</>", "e</>")


SEVERAL = {
    "prompt": [user("a")],
    "chosen": [assistant("b"), user("c"), assistant("d")],
    "rejected": [assistant("e")],
}


def test_an_answer_may_be_of_several_messages_which_all_count() -> None:
    prompt, chosen, rejected = "<user>a</><assistant>", "b</><user>c</><assistant>d</>", "e</>"
    assert shown(SEVERAL, CHATS, CHATML) == [prompt, chosen, rejected]
    whole = {name: [user("a"), *SEVERAL[name]] for name in ("chosen", "rejected")}
    assert shown(whole, CHATS, CHATML) == [prompt, chosen, rejected]
    longer = {**whole, "rejected": [user("a"), assistant("b"), user("f"), assistant("d")]}
    assert "differ from messages[2] on, which 'chosen' has from 'user'" in refusal(
        longer, CHATS, CHATML
    )
    alike = {**whole, "rejected": [*whole["chosen"][:-1], assistant("f")]}
    assert shown(alike, CHATS, CHATML) == [
        "<user>a</><assistant>b</><user>c</><assistant>",
        "d</>",
        "f</>",
    ]


def test_an_answer_may_call_tools_and_read_what_they_say() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": {}}}
    called = [{**assistant(""), "tool_calls": [call]}, {"role": "tool", "content": "3"}]
    record = {"prompt": [user("a")], "chosen": [*called, assistant("d")], "rejected": "e"}
    prompt, chosen, rejected = shown(record, CHATS, CHATML)
    assert (prompt, rejected) == ("<user>a</><assistant>", "e</>")
    assert chosen == '<call>{"name": "f", "arguments": {}}</><tool>3</><assistant>d</>'


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"rejected": [assistant("b")]}, "'rejected' is the beginning of the other"),
        (
            {"chosen": [{**assistant("b"), "weight": 0}, user("c"), assistant("d")]},
            r"'chosen' has a turn after the prompt that is not trained \(weight, train or loss\)",
        ),
    ],
)
def test_messages_that_are_no_answer_are_refused(record: Record, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(refusal({**SEVERAL, **record}, CHATS, CHATML))


def test_answers_that_do_not_go_on_from_their_prompt_are_refused() -> None:
    changing = "{{ '!' if messages | length > 2 }}" + CHATML
    message = "t writes messages differently when more follow, so that an answer of several"
    assert message in refusal(SEVERAL, CHATS, changing)


NO_PAIR_OF_TEXTS: list[tuple[Record, str]] = [
    ({"rejected": "a"}, "are the same"),
    ({"rejected": ""}, "'rejected' has no text"),
    ({"prompt": 3}, "'prompt' is a number"),
    ({"label": True}, "field 'label' is not used"),
]
NO_PAIR_OF_CHATS: list[tuple[Record, str]] = [
    ({"instruction": "p"}, r"there is no message to answer \(found 'chosen', 'rejected', 'i"),
    ({"system": "s", "question": "p"}, "there is no message to answer"),
    ({"prompt": [user("p"), assistant("q")]}, "the message before the answers is from the ass"),
    ({"prompt": "p", "chosen": [assistant("")]}, "'chosen' ends with a message without text"),
    (
        {"messages": [user("other")], **{n: [user("p"), *each] for n, each in BOTH.items()}},
        "'chosen' is a conversation that does not begin with the messages",
    ),
    ({"prompt": "p", "chosen": None}, "field 'chosen' is null, not a message"),
    ({"rejected": []}, "'rejected' is a list, not a message"),
    (
        {"rejected": [assistant("x"), user("y")]},
        "'rejected' does not end with a message of the assistant",
    ),
    (
        {"chosen": [user("p"), assistant("a")], "rejected": [user("q"), assistant("b")]},
        r"differ from messages\[0\] on, which 'chosen' has from 'user'; both answers begin",
    ),
    ({"prompt": "p", "rejected": [assistant("a")]}, "are the same"),
]


@pytest.mark.parametrize(("changes", "message"), NO_PAIR_OF_TEXTS)
def test_texts_that_are_no_pair_are_refused(changes: Record, message: str) -> None:
    assert message in refusal({"prompt": "p", "chosen": "a", "rejected": "b", **changes}, TEXTS)


@pytest.mark.parametrize(("changes", "message"), NO_PAIR_OF_CHATS)
def test_messages_that_are_no_pair_are_refused(changes: Record, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(refusal({**BOTH, **changes}, CHATS, CHATML))


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (1, "the best and the worst of field 'completions' are the same"),
        (math.nan, "completions[1].overall_score is nan, not a finite number"),
        (None, "completions[1].overall_score is None, not a finite number"),
    ],
)
def test_ratings_have_to_tell_answers_apart(score: float | None, message: str) -> None:
    rated = [{"response": n, "overall_score": s} for n, s in (("a", 1), ("b", score))]
    assert message in refusal({"instruction": "p", "completions": rated}, TEXTS)


def test_messages_need_a_template_that_shows_the_prompt() -> None:
    assert "messages need a chat template" in refusal({"prompt": "p", **BOTH}, CHATS)
    bare = "{%- for m in messages %}{{ m.content }}{%- endfor %}"
    assert "prompt has no token" in refusal({"prompt": [user("")], **BOTH}, CHATS, bare)


OTHER_NAMES: dict[str, Record] = {
    "OpenAI": {
        "input": {"messages": [user("hi")], "tools": []},
        "preferred_output": [assistant("good")],
        "non_preferred_output": [assistant("bad")],
    },
    "HelpSteer 3, the second": {
        "context": [user("hi")],
        "response1": "bad",
        "response2": "good",
        "overall_preference": 2,
    },
    "HelpSteer 3, the first": {
        "context": [user("hi")],
        "response1": "good",
        "response2": "bad",
        "overall_preference": -1,
    },
    "NeMo": {
        "context": [user("hi")],
        "completions": [
            {"rank": 1, "completion": [assistant("so so")]},
            {"rank": 2, "completion": [assistant("bad")]},
            {"rank": 0, "completion": [assistant("good")]},
        ],
    },
    "NeMo, as text": {
        "context": "hi",
        "completions": [{"rank": 0, "completion": "good"}, {"rank": 1, "completion": "bad"}],
    },
    "StackExchange": {"question": "hi", "response_j": "good", "response_k": "bad", "qid": 3},
}


@pytest.mark.parametrize("kind", OTHER_NAMES)
def test_pairs_of_other_names_are_pairs(kind: str, tmp_path: Path) -> None:
    record = OTHER_NAMES[kind]
    is_text = kind in ("StackExchange", "NeMo, as text")
    expected = TEXTS if is_text else CHATS
    assert shown(record, expected, CHATML) == CHAT
    if is_text:
        assert shown(record, TEXTS) == ["hi", "good$", "bad$"]
    (tmp_path / "in.jsonl").write_text(json.dumps(record))
    assert format_of_sources([tmp_path / "in.jsonl"], PAIR_FIELDS) is expected


def test_what_is_beside_a_pair_of_other_names_counts() -> None:
    openai = OTHER_NAMES["OpenAI"]
    with_tools = {**openai, "input": {**openai["input"], "tools": [{"name": "f"}]}}
    assert shown(with_tools, CHATS, CHATML)[0].startswith("<tools>")
    assert "field 'images' is not used" in refusal({**openai, "images": ["a"]}, CHATS, CHATML)
    equal = {**OTHER_NAMES["HelpSteer 3, the first"], "overall_preference": 0}
    assert "field 'overall_preference' is 0: nothing to pre" in refusal(equal, CHATS, CHATML)


def test_fields_that_are_named_make_another_pair(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps(OTHER_NAMES["StackExchange"]))
    fields = PairFields("question", "response_j")
    assert format_of_sources([tmp_path / "in.jsonl"], fields) is RecordFormat.PAIRS


def test_completions_without_a_prompt_are_not_answers(tmp_path: Path) -> None:
    pair = {"inputs": "a", "targets": "b", "completions": [{"overall_score": 1}]}
    (tmp_path / "in.jsonl").write_text(json.dumps(pair))
    assert format_of_sources([tmp_path / "in.jsonl"], PAIR_FIELDS) is RecordFormat.PAIRS


CHATS_OF_BOTH = {name: [user("p"), *BOTH[name]] for name in BOTH}
TEXT_OF: dict[str, Callable[[list[Record]], str]] = {
    "JSON": json.dumps,
    "Python": str,
    "numpy": lambda chat: f"array({[dict(reversed(each.items())) for each in chat]}, dtype=object)",
    "an object": lambda chat: json.dumps({"tools": [], "messages": chat}),
    "ShareGPT": lambda _: json.dumps([{"from": "human", "value": "p"}]),
    "one message": lambda chat: json.dumps(chat[-1]),
}


@pytest.mark.parametrize("form", TEXT_OF)
@pytest.mark.parametrize("name", ["chosen", "rejected", "prompt"])
def test_messages_in_a_text_are_not_trained_as_text(form: str, name: str) -> None:
    chat = CHATS_OF_BOTH.get(name, [user("p")])
    record = {"prompt": "p", "chosen": "a", "rejected": "b", name: TEXT_OF[form](chat)}
    message = f"field '{name}' is a string that holds messages, not a list of messages; write a"
    assert message in refusal(record, TEXTS)
    assert message in refusal(record, TEXTS, CHATML)
    other = "rejected" if name == "chosen" else "chosen"
    assert message in refusal({**record, other: BOTH[other]}, CHATS, CHATML)


@pytest.mark.parametrize(
    "answer",
    ['{"river": "Ebro"}', '[{"role": "admin"}]', '{"messages": []}', "[1", "[" * 9000, "{'a'}"],
)
def test_an_answer_may_be_other_json(answer: str) -> None:
    record = {"prompt": "p", "chosen": answer, "rejected": "b"}
    assert shown(record, TEXTS) == ["p", f"{answer}$", "b$"]


def test_the_format_is_recognized_and_other_formats_name_it(tmp_path: Path) -> None:
    pairs, chats = tmp_path / "pairs.jsonl", tmp_path / "chats.jsonl"
    pairs.write_text(json.dumps({"prompt": "p", "chosen": "a", "rejected": "b"}))
    chats.write_text(json.dumps({"prompt": "p", **BOTH}))
    assert format_of_sources([pairs], PAIR_FIELDS) is TEXTS
    assert format_of_sources([chats], PAIR_FIELDS) is CHATS
    recipe = Recipe(Tokenizer(), RecordFormat.PAIRS)
    with pytest.raises(InputError, match=r"preference pairs of texts .* --format preferences"):
        preprocess([pairs], tmp_path / "x.h5", recipe, PreprocessOptions(n_workers=1))


@pytest.mark.parametrize(
    ("record", "record_format"),
    [({"prompt": "p", "chosen": "a"}, TEXTS), ({"prompt": "p", "chosen": [assistant("a")]}, CHATS)],
)
def test_a_pair_without_its_other_answer_is_recognized_and_refused(
    record: Record, record_format: RecordFormat, tmp_path: Path
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps(record))
    assert format_of_sources([source], PAIR_FIELDS) is record_format
    template = ChatTemplate("t", {"default": CHATML}) if record_format is CHATS else None
    recipe = Recipe(Tokenizer(), record_format, template=template)
    message = (
        r"in\.jsonl:1: field 'rejected' is missing \(found 'prompt', 'chosen'\); a preference pair "
        "has both answers, 'chosen' and 'rejected', or .*; correct it"
    )
    with pytest.raises(InputError, match=message):
        preprocess([source], tmp_path / "x.h5", recipe, PreprocessOptions(n_workers=1))


def test_a_dataset_of_pairs_shows_both_answers(tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.h5"
    records = [{"prompt": "2+2?", "chosen": "4", "rejected": n * "5"} for n in (1, 2)]
    source.write_text("\n".join(map(json.dumps, records)))
    recipe = Recipe(Tokenizer(), TEXTS)
    totals = preprocess([source], output, recipe, PreprocessOptions(n_workers=1))
    assert (totals.n_samples, totals.n_tokens) == (2, 4 + 2 + 2 + 4 + 2 + 3)
    with DatasetFile(output) as dataset:
        assert dataset.header.has_pairs
        assert dataset.rejected_lengths.tolist() == [2, 3]
    assert show_samples(output, 1, None).splitlines() == [
        "sample 0 of task default: 8 tokens, 4 of them trained",
        "  read      2+2?",
        "  chosen    4<end>",
        "  rejected  5<end>",
    ]
