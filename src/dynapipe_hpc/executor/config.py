"""The [executor] table: how plans are executed."""

from pydantic import Field

from dynapipe_hpc.data.config_table import ConfigTable


class ExecutorConfig(ConfigTable):
    """The [executor] table: the time limit of a rank.

    Attributes:
        timeout_s: Longest time in seconds without a finished instruction on a rank; then the job
            ends and reports where every rank was. The default is generous, because the first
            iterations of a large model on a busy cluster may take minutes. Waiting for a plan is
            limited by `store.timeout_s`.
    """

    timeout_s: float = Field(default=600.0, gt=0)
