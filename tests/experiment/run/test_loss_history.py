"""Which state is the best, and when training ends early."""

import math

from dynapipe_hpc.experiment.run.loss_history import LossHistory


def test_the_best_has_the_lowest_loss_since_training_began() -> None:
    history = LossHistory(patience=0)
    losses = {0: 0.5, 10: 3.0, 20: 2.0, 30: 2.0, 40: math.nan, 50: 1.0}
    best = [n_done for n_done, loss in losses.items() if history.add(n_done, loss)]
    assert best == [10, 20, 50]
    assert history.best == 50
    assert not history.is_over
    assert (30 in history, 35 in history) == (True, False)


def test_a_loss_that_is_no_number_is_never_the_best() -> None:
    history = LossHistory(patience=2)
    assert [history.add(n, loss) for n, loss in ((5, math.nan), (10, 4.0), (15, math.inf))] == [
        *(False, True, False)
    ]
    assert history.best == 10
    never = LossHistory(1, [(5, math.nan)])
    assert never.describe() == (
        "no lower loss in 1 evaluations (evaluation.patience); none was a finite number"
    )


def test_patience_ends_after_so_many_evaluations_without_a_lower_loss() -> None:
    history = LossHistory(patience=2)
    over = []
    for n_done, loss in enumerate([9.0, 3.0, 4.0, 2.0, 2.0, 2.5, 1.0]):
        history.add(n_done, loss)
        over.append(history.is_over)
    assert over == [False, False, False, False, False, True, False]


def test_a_history_that_is_continued_is_the_same() -> None:
    losses = [(0, 9.0), (5, 3.0), (10, 4.0), (15, 3.5)]
    history = LossHistory(2, losses)
    assert history.is_over
    assert history.best == 5
    told = (
        "no lower loss in 2 evaluations .evaluation.patience.; the lowest, 3.0000, was after 5 it"
    )
    assert history.describe().startswith(
        told.replace(".evaluation.patience.", "(evaluation.patience)")
    )
