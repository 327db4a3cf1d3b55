# LUMI at CSC, nodes of 4 MI250X with two dies each on Slingshot 11.
# Source: https://github.com/Lumi-supercomputer/LUMI-EasyBuild-docs (PyTorch), for interfaces and masks
# Source: https://docs.olcf.ornl.gov/software/analytics/pytorch_frontier.html, for libfabric
# NCCL_NET_GDR_LEVEL=3 is faster where it works, but may hang: it is not set here.
export MPICH_GPU_SUPPORT_ENABLED=0  # MPI carries nothing of a GPU here, and beside RCCL may deadlock
export NCCL_SOCKET_IFNAME=hsn0,hsn1,hsn2,hsn3
export FI_CXI_DEFAULT_CQ_SIZE=131072
export FI_MR_CACHE_MONITOR=userfaultfd
# The cores beside each die, without the first of every eight, which the system keeps.
export LAUNCHER="srun --cpu-bind=mask_cpu:0xfe000000000000,0xfe00000000000000,0xfe0000,0xfe000000,0xfe,0xfe00,0xfe00000000,0xfe0000000000"
