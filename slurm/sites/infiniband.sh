# Nodes on InfiniBand: Leonardo, JUWELS Booster, JUPITER and most others.
# Source: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
export MPICH_GPU_SUPPORT_ENABLED=0  # of Cray MPICH; others carry nothing of a GPU unless asked to
export NCCL_SOCKET_IFNAME=ib        # all that begin with ib
export NCCL_IB_HCA=mlx5
