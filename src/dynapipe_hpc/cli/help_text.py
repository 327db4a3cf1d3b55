"""Help texts that end with examples."""

import argparse

_HEADING = "examples:"


def examples(*commands: str) -> str:
    """Commands to try, one per line, as the epilog of a verb."""
    return "\n  ".join((_HEADING, *commands))


class HelpFormatter(argparse.HelpFormatter):
    """Fills paragraphs, but leaves examples as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith(_HEADING) else super()._fill_text(text, width, indent)
