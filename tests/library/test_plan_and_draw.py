"""The notebook does what it says."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dynapipe_hpc.plan.instruction import Backward, Forward

NOTEBOOK = Path(__file__).parents[2] / "examples" / "plan_and_draw.ipynb"


def test_every_pass_of_the_plans_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib").use("agg")
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            exec(compile("".join(cell["source"]), NOTEBOOK.name, "exec"), names)  # noqa: S102 - ours
    drawn = [(box.get_x(), box.get_x() + box.get_width()) for box in names["axes"].patches]
    plans = names["plans"]
    planned = sorted(each for plan in plans for each in plan.prediction.passes_ms)
    assert np.array(sorted(drawn)) == pytest.approx(np.array(planned))
    n_passes = sum(isinstance(each, Forward | Backward) for p in plans for each in p.instructions)
    assert len(drawn) == n_passes == 8 * len(plans[0].microbatches)
    assert "rank 0 |" in capsys.readouterr().out
    names["plt"].close(names["figure"])
