# Frontier at OLCF, nodes of 4 MI250X with two dies each on Slingshot 11.
# Source: https://docs.olcf.ornl.gov/software/analytics/pytorch_frontier.html
export MPICH_GPU_SUPPORT_ENABLED=0  # MPI carries nothing of a GPU here, and beside RCCL may deadlock
export NCCL_SOCKET_IFNAME=hsn0
export NCCL_NET_GDR_LEVEL=3         # remove it if ranks hang
export NCCL_CROSS_NIC=1
export FI_CXI_DEFAULT_CQ_SIZE=131072
export FI_CXI_DEFAULT_TX_SIZE=2048
export FI_CXI_RX_MATCH_MODE=hybrid
export FI_MR_CACHE_MONITOR=kdreg2   # required to avoid a deadlock
# The cores beside each die, without the first of every eight, which the system keeps.
export LAUNCHER="srun --cpu-bind=mask_cpu:0xfe000000000000,0xfe00000000000000,0xfe0000,0xfe000000,0xfe,0xfe00,0xfe00000000,0xfe0000000000"
