"""How plans are executed."""

from pydantic import Field

from dynapipe_hpc.data.config_table import ConfigTable


class ExecutorConfig(ConfigTable):
    """The [executor] table.

    Attributes:
        timeout_s: Longest time in which a rank ends no instruction; then the job ends, and says
            where every rank was. Generous, as the first iterations of a large model on a busy
            cluster may take minutes; waiting for a plan is limited by `store.timeout_s`.
    """

    timeout_s: float = Field(default=600.0, gt=0)
