"""Versions of driver, torch, NCCL and cuDNN, and the attention kernel that torch prefers."""

import shutil
import subprocess
import sys

import torch
from torch.nn.attention import SDPBackend

from gpu.device import nccl_version
from gpu.finding import lacks, note

QUERY = ["--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
SHAPE = (2, 16, 1024, 128)  # rows, heads, tokens, size of a head
HOPPER = 9  # from this compute capability on, cuDNN comes first


def main() -> None:
    note("python", sys.version.split()[0])
    note("torch", torch.__version__)
    note("CUDA of torch", torch.version.cuda)
    nvidia_smi = shutil.which("nvidia-smi")
    if nvidia_smi is not None:
        done = subprocess.run([nvidia_smi, *QUERY], capture_output=True, text=True, check=False)
        note("nvidia-smi", done.stdout.strip() or done.stderr.strip())
    if not torch.cuda.is_available():
        lacks("a CUDA device")
    note("GPU", torch.cuda.get_device_name())
    note("memory in bytes", torch.cuda.mem_get_info()[1])
    note("NCCL", ".".join(map(str, nccl_version())))
    note("cuDNN", torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    is_hopper = torch.cuda.get_device_capability()[0] >= HOPPER
    preferred = SDPBackend.CUDNN_ATTENTION if is_hopper else SDPBackend.FLASH_ATTENTION
    with_cudnn = chosen_backend()
    note("attention kernel", with_cudnn.name, preferred.name, with_cudnn == preferred)
    torch.backends.cuda.enable_cudnn_sdp(False)
    without = chosen_backend()
    is_flash = without == SDPBackend.FLASH_ATTENTION
    note("attention kernel without cuDNN", without.name, "FLASH_ATTENTION", is_flash)


def chosen_backend() -> SDPBackend:
    """The kernel that torch takes for causal attention in bfloat16, without a mask."""
    query = torch.empty(SHAPE, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    return SDPBackend(torch._fused_sdp_choice(query, query, query, is_causal=True))


if __name__ == "__main__":
    main()
