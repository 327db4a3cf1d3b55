"""Places of tokens in a decoder-only model: their documents and rotary positions."""

from typing import NamedTuple

from torch import Tensor

from dynapipe_hpc.models.attention import causal_attention
from dynapipe_hpc.models.rotary import Angles
from dynapipe_hpc.models.tokens.documents import Documents


class Places(NamedTuple):
    """Places of a micro-batch's tokens, which all layers of a stage know.

    Attributes:
        documents: Documents of a packed row, which attend to themselves only; None for attention
            over whole rows.
        angles: Angles of rotary positions; None where embeddings tell positions.
    """

    documents: Documents | None = None
    angles: Angles | None = None

    def attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention of every token to itself and to those before it, see `causal_attention`.

        Args:
            query: What attends, shape (rows, tokens, heads, head size).
            key: What is attended to, shape (rows, tokens, key heads, head size).
            value: What is weighted, of the shape of `key`.

        Returns:
            Mixed values, shape (rows, tokens, heads x head size).
        """
        if self.angles is not None:
            query, key = self.angles.turn(query), self.angles.turn(key)
        query, key, value = (each.transpose(1, 2) for each in (query, key, value))
        return causal_attention(query, key, value, self.documents).transpose(1, 2).flatten(2)


WHOLE_ROWS = Places()
