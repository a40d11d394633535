"""Where tensors are computed: this process's GPU, or the CPU."""

import os
import re

import torch


def pick_device(name: str = "auto") -> torch.device:
    """ "auto" is this process's GPU if there is one, else the CPU.

    >>> pick_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ValueError(f"device is {name!r}; expected 'auto', 'cpu', 'cuda' or 'cuda:1'")
    device = torch.device(name)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError("device is 'cuda', but this PyTorch sees no GPU; use --device cpu")
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", device.index or 0)))
        count = torch.cuda.device_count()
        if device.index >= count:
            gpus = "one GPU" if count == 1 else f"{count} GPUs"
            raise ValueError(f"there is no {device}: this PyTorch sees {gpus}; use --device cpu, or fewer processes")
        torch.cuda.set_device(device)
    return device
