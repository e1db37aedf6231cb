"""Index tensors that know where they are, host or device, on a machine that has only one of the two."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves


class Indices(torch.Tensor):
    """Values are real; the place is an attribute that `to` and `cpu` change and every other operation passes on."""

    on_device = False

    @property
    def is_cuda(self) -> bool:
        return self.on_device

    @property
    def device(self) -> torch.device:
        return torch.device("cuda:0" if self.on_device else "cpu")

    def to(self, target: Any, **_: Any) -> Indices:
        return place(self, on_device=torch.device(target).type != "cpu")

    def cpu(self) -> Indices:
        return place(self, on_device=False)

    def record_stream(self, stream: Any) -> None:
        assert self.on_device, "a stream keeps device memory alive, not the host's"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs)
        if isinstance(result, cls):
            given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, cls)]
            result.on_device = any(leaf.on_device for leaf in given)
        return result


def place(values: Any, *, on_device: bool) -> Indices:
    """*values* as indices on the device or on the host."""
    found = torch.Tensor.as_subclass(torch.as_tensor(values).clone(), Indices)
    found.on_device = on_device
    return found
