"""Where torch puts new tensors that do not say."""

from contextlib import AbstractContextManager, nullcontext

import torch


def new_tensors_on(device: torch.device | str) -> AbstractContextManager[object]:
    """New tensors on this device, whatever ``torch.set_default_device`` says.

    Ours live on the CPU, and those that a network makes have to meet its weights.
    """
    device = torch.device(device)
    # Not torch.get_default_device: up to torch 2.6 it fails after a reset to None.
    if torch.empty(0).device.type == device.type:
        return nullcontext()
    return device
