"""Quantities that grow with the tokens of a micro-batch."""

from typing import NamedTuple


class Amount(NamedTuple):
    """Coefficients of a quantity (operations, numbers or bytes) that depends on numbers of tokens.

    Attributes:
        per_own: Amount for every token that passes through the part.
        per_source: Amount for every token of the other side, which own tokens attend to.
        per_pair: Amount for every pair of an own token and a token that it attends to.
        per_own_pair: Amount for every pair of own tokens of the same row.
        per_square: Amount for every pair of positions in a row, however many rows there are.
        per_far_pair: Amount for every pair of own tokens of the same row that lie further apart
            than the window of the part.
        per_masked_square: Amount like `per_square`, where rows are longer than that window.
    """

    per_own: int = 0
    per_source: int = 0
    per_pair: int = 0
    per_own_pair: int = 0
    per_square: int = 0
    per_far_pair: int = 0
    per_masked_square: int = 0

    def times(self, factor: int) -> "Amount":
        """The amount multiplied by a factor."""
        return Amount(*(factor * each for each in self))


NOTHING = Amount()


def total(*amounts: Amount) -> Amount:
    """The sum of any number of amounts."""
    return Amount(*map(sum, zip(NOTHING, *amounts, strict=True)))
