"""Jinja as Hugging Face's chat templates expect it, with blocks of generated text marked.

Source:
    Documentation of `transformers`, "Writing a chat template": the functions, filters, extensions
    and whitespace settings that templates may rely on.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

BEGIN, END = "\0\1", "\0\2"
"""Marks around generated text; no message holds a zero character."""


class TemplateRefusesError(jinja2.TemplateError):
    """A template called `raise_exception`."""


class _Generation(Extension):
    """The block `{% generation %}`, around what the assistant writes."""

    tags = {"generation"}  # noqa: RUF012 (as the library declares it)

    def parse(self, parser: Parser) -> nodes.Node:
        """A call that marks the body of the block."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    @staticmethod
    def _marked(caller: Callable[[], str]) -> str:
        return f"{BEGIN}{caller()}{END}"


@cache
def compiled(source: str) -> jinja2.Template:
    """A template, compiled once per process.

    Raises:
        jinja2.TemplateError: It is not a template.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    return environment.from_string(source)


def _to_json(value: Any, **settings: Any) -> str:
    """JSON without HTML's escapes, which Jinja's own filter writes."""
    return json.dumps(value, **{"ensure_ascii": False, **settings})


def _refuse(message: str) -> str:
    raise TemplateRefusesError(message)


def _now(form: str) -> str:
    return datetime.now(UTC).astimezone().strftime(form)
