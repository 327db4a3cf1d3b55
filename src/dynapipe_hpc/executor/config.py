"""The [executor] table: how plans are executed."""

from typing import Literal

from pydantic import Field

from dynapipe_hpc.data.config_table import ConfigTable


class ExecutorConfig(ConfigTable):
    """The [executor] table: the time limit of a rank, and what it runs first.

    Attributes:
        largest_first: Whether ranks run the largest micro-batches of the first plans once before
            training, so that a lack of memory shows in the first minute: "auto" (on GPUs only),
            "on" or "off". Losses do not change. Slices of long samples are left out.
        timeout_s: Maximum time in seconds without a finished instruction on a rank; then the job
            ends and reports where every rank was. The default is generous, because the first
            iterations of a large model on a busy cluster may take minutes. Waiting for a plan is
            limited by `store.timeout_s`.
    """

    largest_first: Literal["auto", "on", "off"] = "auto"
    timeout_s: float = Field(default=600.0, gt=0)
