"""Watches the operations that torch is asked for: which wait for the device, and how many."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Operations whose result, or whose result's shape, must be known to the host.
ASKING = {
    "_local_scalar_dense",
    "nonzero",
    "nonzero_static",
    "masked_select",
    "is_nonzero",
    "equal",
    "unique",
    "_unique2",
    "unique_consecutive",
    "repeat_interleave",
}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}


class NoHostSync(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ASKING:
            raise AssertionError(f"{func} waits for the device")
        if name in INDEXING:
            for index in args[1]:
                if index is not None and index.dtype in (torch.bool, torch.uint8):
                    raise AssertionError(f"{func} with a mask waits for the device")
        return func(*args, **(kwargs or {}))


class CountOps(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "aten" and not func.is_view:
            self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))
