# Alps at CSCS, nodes of 4 GH200 on Slingshot 11.
# Source: https://docs.cscs.ch/software/communication/nccl
export MPICH_GPU_SUPPORT_ENABLED=0  # "GPU-aware MPI together with NCCL can easily lead to deadlocks"
export NCCL_NET="AWS Libfabric"     # fails to start without the plugin, instead of using TCP
export NCCL_SOCKET_IFNAME=hsn
export NCCL_NET_GDR_LEVEL=PHB
export NCCL_CROSS_NIC=1
export NCCL_PROTO=^LL128
export FI_CXI_DEFAULT_CQ_SIZE=131072
export FI_CXI_DEFAULT_TX_SIZE=32768
export FI_CXI_DISABLE_HOST_REGISTER=1
export FI_CXI_RX_MATCH_MODE=software
export FI_MR_CACHE_MONITOR=userfaultfd
