"""The [store] table: how plans wait between planning and execution."""

from typing import Literal

from pydantic import ByteSize, Field

from dynapipe_hpc.data.config_table import ConfigTable

ProgressChoice = Literal["auto", "rma", "thread"]


class StoreConfig(ConfigTable):
    """The [store] table: look-ahead, sizes and timeouts of the plan store.

    Attributes:
        look_ahead: Iterations that may be planned ahead of execution. Up to this number of ranks
            take turns to plan; a value above the job's number of ranks is rounded up to a multiple
            of that number.
        plan_bytes: Maximum size of a rank's plan; a larger plan ends the run with an error. A host
            reserves look_ahead times this size of shared memory for each of its ranks.
        timeout_s: Longest wait for a plan, in seconds; after it the run ends with an error.
        progress: Way in which plans reach another host while its first rank computes. rma: by MPI
            and the network, without that rank's help. thread: by a thread of that rank. auto: rma
            if a test at the start shows that it works, else thread.
    """

    look_ahead: int = Field(default=4, ge=1, le=4096)
    plan_bytes: ByteSize = Field(default=ByteSize(1_000_000), ge=1024, le=2**31 - 1)
    timeout_s: float = Field(default=300.0, gt=0, le=1e6)
    progress: ProgressChoice = "auto"
