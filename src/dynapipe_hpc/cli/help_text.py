"""Help texts that end with examples."""

import argparse

_HEADING = "examples:"


def examples(*commands: str) -> str:
    """The epilog of a verb: commands to try, one per line."""
    return "\n  ".join((_HEADING, *commands))


class HelpFormatter(argparse.HelpFormatter):
    """A help formatter that wraps paragraphs but leaves examples as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith(_HEADING) else super()._fill_text(text, width, indent)
