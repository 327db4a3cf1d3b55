# Nodes of NVIDIA GPUs on Slingshot 11 without a file of their own: Perlmutter, Isambard-AI, Derecho.
# Source: https://docs.isambard.ac.uk/user-documentation/guides/nccl
export MPICH_GPU_SUPPORT_ENABLED=0  # MPI carries nothing of a GPU here, and beside NCCL may deadlock
export NCCL_NET="AWS Libfabric"     # fails to start without the plugin, instead of using TCP
export NCCL_SOCKET_IFNAME=hsn
export NCCL_NET_GDR_LEVEL=PHB
export NCCL_CROSS_NIC=1
export NCCL_MIN_NCHANNELS=4
export FI_CXI_DEFAULT_CQ_SIZE=131072
export FI_CXI_DEFAULT_TX_SIZE=2048
export FI_CXI_DISABLE_HOST_REGISTER=1
export FI_CXI_RDZV_PROTO=alt_read
export FI_CXI_RDZV_EAGER_SIZE=0
export FI_CXI_RDZV_THRESHOLD=0
export FI_CXI_RDZV_GET_MIN=0
export FI_CXI_RX_MATCH_MODE=hybrid
export FI_MR_CACHE_MONITOR=userfaultfd
