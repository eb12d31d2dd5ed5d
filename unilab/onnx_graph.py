"""Write a feed-forward torch policy as an ONNX graph, operation by operation.

torch's own exporter either needs onnxscript or is deprecated since torch 2.9. A policy is a handful
of operations; torch.fx lists them, and what the policies of the learners use is translated here.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import fx, nn

# Readable by onnxruntime from 1.17 on (January 2024).
OPSET, IR_VERSION = 20, 9

SIMPLE_MODULES: dict[type[nn.Module], str] = {nn.ReLU: "Relu", nn.Tanh: "Tanh"}
FUNCTIONS: dict[Any, str] = {
    operator.sub: "Sub",
    operator.mul: "Mul",
    operator.add: "Add",
    torch.tanh: "Tanh",
    torch.relu: "Relu",
}


class _Graph:
    """ONNX nodes and weights, as they are added."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: dict[str, Any] = {}

    def add(self, kind: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Add a node; returns the name of its result."""
        name = output or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def weight(self, value: NDArray[np.float32] | float, name: str) -> str:
        """Add a constant, once for each name; returns its name."""
        array = np.ascontiguousarray(value, dtype=np.float32).reshape(np.shape(value))
        self.weights.setdefault(name, numpy_helper.from_array(array, name))
        return name

    def integers(self, values: tuple[int, ...], name: str) -> str:
        """Add a constant of integers, once for each name; returns its name."""
        self.weights.setdefault(name, numpy_helper.from_array(np.array(values, np.int64), name))
        return name


def write_onnx(
    policy: nn.Module,
    *,
    obs_dim: int,
    ctrl_scale: NDArray[np.float32],
    ctrl_offset: NDArray[np.float32],
    action_clip: float,
    properties: Mapping[str, str],
    path: Path,
) -> None:
    """Write the graph obs -> action (clipped), ctrl = offset + scale * action into one file.

    Args:
      policy: (n, O) to (n, A), on the CPU, f32, evaluation mode.
      obs_dim: O.
      ctrl_scale, ctrl_offset: (A,) f32.
      action_clip: limit of |action|.
      properties: metadata of the file.
      path: where to; overwritten.

    Raises:
      ExportError: an operation of the policy has no translation.
    """
    graph = _Graph()
    raw = _translate(policy, graph)
    low, high = graph.weight(-action_clip, "action_min"), graph.weight(action_clip, "action_max")
    graph.add("Clip", raw, low, high, output="action")
    scaled = graph.add("Mul", "action", graph.weight(ctrl_scale, "ctrl_scale"))
    graph.add("Add", scaled, graph.weight(ctrl_offset, "ctrl_offset"), output="ctrl")
    size = len(ctrl_scale)

    def info(name: str, width: int) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width])

    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "policy",
            [info("obs", obs_dim)],
            [info("action", size), info("ctrl", size)],
            list(graph.weights.values()),
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="unilab",
    )
    helper.set_model_props(model, dict(properties))
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString())


def _translate(policy: nn.Module, graph: _Graph) -> str:
    """Add the policy's operations; returns the name of its result."""
    try:
        traced = fx.symbolic_trace(policy)
    except fx.proxy.TraceError as error:
        raise _unsupported(f"data dependent control flow ({error})") from None
    modules = dict(traced.named_modules())
    names: dict[fx.Node, str] = {}
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            if names:
                raise _unsupported(f"second input '{node.target}'")
            names[node] = "obs"
        elif node.op == "get_attr":
            tensor = operator.attrgetter(node.target)(traced)
            names[node] = graph.weight(tensor.detach().numpy(), f"policy.{node.target}")
        elif node.op == "call_module":
            if len(node.args) != 1 or node.kwargs:
                raise _unsupported(f"call of {node.target} with {node.args} {node.kwargs}")
            module = modules[node.target]
            names[node] = _add_module(graph, module, names[node.args[0]], f"policy.{node.target}")
        elif node.op == "output":
            if not isinstance(node.args[0], fx.Node):
                raise _unsupported(f"a result that is no single tensor, {node.args[0]}")
            return names[node.args[0]]
        else:
            kind = FUNCTIONS.get(node.target) if node.op == "call_function" else None
            tensors = [names[a] for a in node.args if isinstance(a, fx.Node)]
            if kind is None or node.kwargs or len(tensors) != len(node.args):
                raise _unsupported(f"{node.target} with {node.args} {node.kwargs}")
            names[node] = graph.add(kind, *tensors)
    raise _unsupported("a policy without a result")


def _add_module(graph: _Graph, module: nn.Module, x: str, name: str) -> str:
    if isinstance(module, nn.Linear):
        weights = [graph.weight(module.weight.detach().numpy(), f"{name}.weight")]
        if module.bias is not None:
            weights.append(graph.weight(module.bias.detach().numpy(), f"{name}.bias"))
        return graph.add("Gemm", x, *weights, transB=1)
    if isinstance(module, nn.LayerNorm):
        parts = (("weight", module.weight), ("bias", module.bias))
        weights = [graph.weight(w.detach().numpy(), f"{name}.{key}") for key, w in parts]
        return graph.add("LayerNormalization", x, *weights, axis=-1, epsilon=module.eps)
    if isinstance(module, nn.RMSNorm) and module.weight is None and module.eps is not None:
        return _add_rms_norm(graph, x, module.eps, name)
    if isinstance(module, nn.ELU):
        return graph.add("Elu", x, alpha=float(module.alpha))
    if isinstance(module, nn.GELU):
        return graph.add("Gelu", x, approximate=module.approximate)
    if isinstance(module, nn.SiLU):
        return graph.add("Mul", x, graph.add("Sigmoid", x))
    kind = SIMPLE_MODULES.get(type(module))
    if kind is None:
        raise _unsupported(f"module {name} of type {type(module).__name__}")
    return graph.add(kind, x)


def _add_rms_norm(graph: _Graph, x: str, epsilon: float, name: str) -> str:
    """Of rows; ONNX has an operation for it from opset 23 on only."""
    last = graph.integers((-1,), "last_axis")
    square = graph.add("ReduceMean", graph.add("Mul", x, x), last, keepdims=1)
    shifted = graph.add("Add", square, graph.weight(epsilon, f"{name}.eps"))
    return graph.add("Div", x, graph.add("Sqrt", shifted))


def _unsupported(what: str) -> Exception:
    from unilab.export import ExportError

    return ExportError(
        f"export: the policy uses {what}, which has no translation to ONNX; use one of the "
        "modules and functions that unilab/onnx_graph.py lists, or add it there"
    )
