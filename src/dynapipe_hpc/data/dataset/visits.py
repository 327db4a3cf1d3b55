"""Order in which the samples of one dataset of a mixture are visited, epoch after epoch."""

import numpy as np

from dynapipe_hpc.data.dataset.batches import Tokens, random_order


class Visits:
    """Visits to the samples of a dataset; every epoch has an order of its own.

    Whatever comes in the last quarter of an epoch does not come in the first quarter of the next,
    so that a quarter of the dataset lies between two visits to a sample.
    """

    def __init__(self, kept: Tokens, seed: int, dataset: int) -> None:
        """Takes the ids of the usable samples, at least one, and the index of the dataset."""
        self._kept, self._seed, self._dataset = kept, seed, dataset
        self._recent: dict[int, Tokens] = {}

    def samples(self, first: int, n_visits: int) -> Tokens:
        """Ids of the samples of `n_visits` visits, from number `first` on."""
        parts = [np.empty(0, np.int64)]
        while n_visits:
            epoch, start = divmod(first, len(self._kept))
            parts.append(self._order(epoch)[start : start + n_visits])
            first, n_visits = first + len(parts[-1]), n_visits - len(parts[-1])
        return self._kept[np.concatenate(parts)]

    def _order(self, epoch: int) -> Tokens:
        if epoch not in self._recent:
            order = self._random(epoch)
            if epoch:
                _keep_apart(self._random(epoch - 1), order)
            while len(self._recent) >= 2:
                del self._recent[next(iter(self._recent))]
            self._recent[epoch] = order
        return self._recent[epoch]

    def _random(self, epoch: int) -> Tokens:
        return random_order(len(self._kept), self._seed, epoch, self._dataset)


def _keep_apart(previous: Tokens, order: Tokens) -> None:
    """Moves what is in the last quarter of one order out of the first quarter of the next.

    It changes places with others of the middle. So the last quarter stays as it was drawn, and no
    order depends on what was moved in the one before.
    """
    n_samples, quarter = len(order), len(order) // 4
    is_late = np.zeros(n_samples, np.bool_)
    is_late[previous[n_samples - quarter :]] = True
    early = np.flatnonzero(is_late[order[:quarter]])
    middle = quarter + np.flatnonzero(~is_late[order[quarter : n_samples - quarter]])
    others = middle[: len(early)]
    order[early], order[others] = order[others], order[early]
