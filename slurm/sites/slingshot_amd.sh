# Nodes of AMD GPUs on Slingshot 11 without a file of their own: Alps with MI300A, El Capitan.
# Source: https://github.com/HewlettPackard/shs-ccl-docs (ccl_env.sh), as quoted by
# Source: https://documentation.sigma2.no/hpc_machines/olivia/nccl.html
export MPICH_GPU_SUPPORT_ENABLED=0  # MPI carries nothing of a GPU here, and beside RCCL may deadlock
export NCCL_NET="AWS Libfabric"
export NCCL_SOCKET_IFNAME=hsn0,hsn1,hsn2,hsn3
export NCCL_NET_GDR_LEVEL=PHB
export NCCL_CROSS_NIC=1
export FI_CXI_DEFAULT_CQ_SIZE=131072
export FI_CXI_DEFAULT_TX_SIZE=2048
export FI_CXI_DISABLE_HOST_REGISTER=1
export FI_CXI_RDZV_PROTO=alt_read
export FI_CXI_RDZV_EAGER_SIZE=0
export FI_CXI_RDZV_THRESHOLD=0
export FI_CXI_RDZV_GET_MIN=0
export FI_CXI_RX_MATCH_MODE=hybrid
export FI_MR_CACHE_MONITOR=userfaultfd
export HSA_FORCE_FINE_GRAIN_PCIE=1
