"""Fields that records are known to have, and what becomes of each: it is used or refused."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.text.record_fields import is_empty

Place = Literal["record", "message"]


@dataclass(frozen=True, slots=True)
class KnownField:
    """A field that has a meaning for whoever wrote it."""

    place: Place
    name: str
    origin: str
    use: str
    is_refused: bool = False


def _refused(place: Place, names: str, origin: str, why: str) -> list[KnownField]:
    return [KnownField(place, name, origin, why, is_refused=True) for name in names.split()]


_OTHER_PAIR = "preference pairs have both answers in chosen and rejected; write them there"
_RATING = "answers that are rated alone are not trained; keep those that are to be learned"
_PAIR = "answers of preference pairs; --format preferences or chat_preferences takes both"
_MEDIA = "only text is trained"
_PARTS = "turns are trained as a whole; use weight, train or loss"

KNOWN_FIELDS = (
    KnownField("record", "messages", "OpenAI, TRL, ms-swift", "the conversation"),
    KnownField("record", "conversations", "ShareGPT, LLaMA-Factory, axolotl", "the conversation"),
    KnownField("record", "prompt", "TRL", "messages that are only read"),
    KnownField("record", "completion", "TRL", "messages after them, which are trained"),
    KnownField("record", "instruction", "Alpaca", "the user's message"),
    KnownField("record", "input", "Alpaca", "the rest of the user's message"),
    KnownField("record", "output", "Alpaca", "the assistant's message"),
    KnownField("record", "system", "LLaMA-Factory, ms-swift", "the first message, of the system"),
    KnownField(
        "record", "history", "LLaMA-Factory, ms-swift", "earlier questions and answers, all trained"
    ),
    KnownField("record", "tools", "OpenAI, TRL, LLaMA-Factory, ms-swift", "shown by the template"),
    KnownField("record", "functions", "OpenAI, older", "the same as tools"),
    KnownField("record", "chat_template_kwargs", "TRL", "values for the template"),
    KnownField("record", "parallel_tool_calls", "OpenAI", "a value for the template"),
    *_refused("record", "tool_choice function_call", "OpenAI", "settings of a request"),
    *_refused("record", "chosen rejected", "TRL, LLaMA-Factory", _PAIR),
    *_refused("record", "rejected_response rejected_messages", "ms-swift", _OTHER_PAIR),
    *_refused("record", "label", "TRL, ms-swift", _RATING),
    *_refused("record", "kto_tag", "LLaMA-Factory", _RATING),
    *_refused("record", "images videos audios", "LLaMA-Factory, TRL, ms-swift", _MEDIA),
    *_refused("record", "image video audio objects", "TRL, ms-swift", _MEDIA),
    *_refused("record", "mask", "NeMo", "turns of the assistant are trained; use weight"),
    KnownField("message", "role", "OpenAI", "shown by the template"),
    KnownField("message", "content", "OpenAI", "text, or a list of parts of text"),
    KnownField("message", "from", "ShareGPT", "the role, under the name that templates know"),
    KnownField("message", "value", "ShareGPT", "the content"),
    KnownField("message", "name", "OpenAI", "given to the template"),
    KnownField("message", "tool_calls", "OpenAI", "shown by the template"),
    KnownField("message", "tool_call_id", "OpenAI", "given to the template"),
    KnownField("message", "function_call", "OpenAI, older", "the same as one of tool_calls"),
    KnownField("message", "reasoning_content", "transformers", "shown by the template"),
    KnownField("message", "reasoning", "OpenAI-like servers", "the same as reasoning_content"),
    KnownField("message", "thinking", "gpt-oss", "the same as reasoning_content"),
    KnownField("message", "weight", "OpenAI", "0: the turn is read, not trained"),
    KnownField("message", "train", "axolotl", "false: the turn is read, not trained"),
    KnownField("message", "loss", "ms-swift", "false: the turn is read, not trained"),
    *_refused("message", "train_detail", "axolotl", _PARTS),
    *_refused("message", "loss_scale", "ms-swift", _PARTS),
    *_refused("message", "mask", "axolotl", _PARTS),
    *_refused("message", "refusal", "OpenAI", "templates do not show it; make it the content"),
    *_refused("message", "images videos audios image video audio", "TRL, ms-swift", _MEDIA),
)
"""All of them; a field of another name is ignored in a record, and given to the template in a
message."""

_REFUSED = {(known.place, known.name): known for known in KNOWN_FIELDS if known.is_refused}


def check_known_fields(fields: Mapping[str, Any], place: Place, prefix: str = "") -> None:
    """Refuses a record or message with a field that training cannot honour."""
    for name, value in fields.items():
        known = _REFUSED.get((place, name))
        if known is None or is_empty(value):
            continue
        if name == "label" and not isinstance(value, bool):  # a class, not a preference
            continue
        raise InputError(
            f"field '{prefix}{name}' is not used ({known.use}); leave the record out, or remove or "
            "rename the field"
        )
