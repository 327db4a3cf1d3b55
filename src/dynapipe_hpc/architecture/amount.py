"""Quantities that grow with the tokens of a micro-batch."""

from typing import NamedTuple


class Amount(NamedTuple):
    """Coefficients of a quantity: operations, numbers or bytes.

    Attributes:
        per_own: For every token that passes through the part.
        per_source: For every token of the other side, which those attend to.
        per_pair: For every pair of a token and one that it attends to.
    """

    per_own: int = 0
    per_source: int = 0
    per_pair: int = 0

    def times(self, factor: int) -> "Amount":
        """A multiple."""
        return Amount(*(factor * each for each in self))


NOTHING = Amount()


def total(*amounts: Amount) -> Amount:
    """The sum of any number of amounts."""
    return Amount(*map(sum, zip(NOTHING, *amounts, strict=True)))
