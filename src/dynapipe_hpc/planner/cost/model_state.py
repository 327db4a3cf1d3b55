"""What a rank keeps of weights, gradients and optimizer state."""

from dynapipe_hpc.plan.cluster import Cluster

GRADIENT_BYTES = 4  # gradients are added up in float32 at least


def state_factor_of_rank(state_factor: float, element_bytes: int, cluster: Cluster) -> float:
    """Bytes of weights, gradients and optimizer state on a rank, per byte of its weights.

    With `cluster.zero_stage` 1, replicas share out the state of the optimizer, float32 copies
    of 16-bit weights included; weights and gradients are on all of them.

    Args:
        state_factor: The same without sharing.
        element_bytes: Size of one number of the weights.
        cluster: The replicas.

    Source:
        Rajbhandari et al., "ZeRO", SC 2020, section 5.1.
    """
    if cluster.zero_stage == 0:
        return state_factor
    kept = 1 + max(GRADIENT_BYTES, element_bytes) / element_bytes
    return kept + max(0.0, state_factor - kept) / cluster.n_replicas
