# Polaris at ALCF, nodes of 4 A100 on Slingshot 11, under PBS.
# Source: https://docs.alcf.anl.gov/polaris/applications-and-libraries/libraries/nccl
export MPICH_GPU_SUPPORT_ENABLED=0  # MPI carries nothing of a GPU here, and beside NCCL may deadlock
export NCCL_NET="AWS Libfabric"     # fails to start without the plugin, instead of using TCP
export NCCL_SOCKET_IFNAME=hsn
export NCCL_NET_GDR_LEVEL=PHB
export NCCL_CROSS_NIC=1
export NCCL_COLLNET_ENABLE=1
export FI_CXI_DEFAULT_CQ_SIZE=131072
export FI_CXI_DISABLE_HOST_REGISTER=1
export FI_MR_CACHE_MONITOR=userfaultfd
