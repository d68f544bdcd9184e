"""The options that tune tries: those that can change how fast this model runs on this device, most promising first."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Collection, Iterable
from typing import Any

from onnxopt.runtime.providers.facts import Facts
from onnxopt.runtime.sessions import CPU, WITHOUT_KINDS, WITHOUT_OPTIMIZERS

_OFF = "off"


@dataclasses.dataclass(frozen=True)
class Knob:
    """An option and the values to try. section: of a provider file. default: ORT's own value, where a file has none."""

    section: str
    option: str
    values: tuple[Any, ...]
    default: Any

    @property
    def name(self) -> str:
        return self.option

    def current(self, configuration: dict[str, Any]) -> Any:
        return configuration[self.section].get(self.option, self.default)

    def apply(self, configuration: dict[str, Any], value: Any) -> dict[str, Any]:
        """A copy of the configuration with this value."""
        changed = copy.deepcopy(configuration)
        changed[self.section][self.option] = value
        return changed


@dataclasses.dataclass(frozen=True)
class Together:
    """Options that mean something only together, on or off; off is ORT's default."""

    name: str
    section: str
    options: tuple[tuple[str, str], ...]
    values: tuple[str, ...] = (_OFF, "on")

    @property
    def option(self) -> str:
        return self.options[0][0]

    def current(self, configuration: dict[str, Any]) -> str:
        return "on" if all(configuration[self.section].get(k) == v for k, v in self.options) else _OFF

    def apply(self, configuration: dict[str, Any], value: str) -> dict[str, Any]:
        """As Knob.apply."""
        changed = copy.deepcopy(configuration)
        for option, setting in self.options:
            changed[self.section].pop(option, None)
            if value == "on":
                changed[self.section][option] = setting
        return changed


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """Names that are on, or off: in the list of an option, which is what a session leaves out, between separators.

    beside: what is on where the names are off.
    """

    name: str
    names: frozenset[str]
    option: str
    separator: str
    beside: Together | None = None
    section: str = "session_config"
    values: tuple[str, ...] = ("on", _OFF)

    def current(self, configuration: dict[str, Any]) -> str:
        beside = self.beside is None or self.beside.current(configuration) == "on"
        return _OFF if beside and self.names <= self._listed(configuration) else "on"

    def apply(self, configuration: dict[str, Any], value: str) -> dict[str, Any]:
        """As Knob.apply."""
        changed = copy.deepcopy(configuration)
        if value == _OFF and self.beside is not None:
            changed = self.beside.apply(changed, "on")
        listed = self._listed(configuration) - self.names | (self.names if value == _OFF else frozenset())
        changed[self.section].pop(self.option, None)
        if listed:
            changed[self.section][self.option] = self.separator.join(sorted(listed))
        return changed

    def _listed(self, configuration: dict[str, Any]) -> frozenset[str]:
        listed: str = configuration[self.section].get(self.option, "")
        return frozenset(name for name in listed.split(self.separator) if name)


def optimizer(name: str) -> LeftOut:
    """One of ORT's graph optimizers, on or off."""
    return LeftOut(name, frozenset({name}), WITHOUT_OPTIMIZERS, ";")


def kernels(name: str, kinds: Iterable[str], beside: Together | None = None) -> LeftOut:
    """onnxopt's kernels of some kinds, on or off: then ONNX Runtime runs their original nodes."""
    return LeftOut(f"kernels: {name}", frozenset(kinds), WITHOUT_KINDS, ",", beside)


AnyKnob = Knob | LeftOut | Together
# Kinds that compute in channels last: where one is given back, Transposes stay between it and the others.
CHANNELS_LAST = frozenset(
    {"block", "convolution", "depthwise", "group_norm", "image_convolution", "pool", "squeeze_excite"}
)
# ORT times cuBLAS' algorithms for every product at the first run of each shape.
_NHWC = Together("nhwc_and_fuse_bias", "provider_options", (("prefer_nhwc", "1"), ("fuse_conv_bias", "1")))
_TUNABLE = Together("tunable_op", "provider_options", (("tunable_op_enable", "1"), ("tunable_op_tuning_enable", "1")))


def knobs(facts: Facts, provider: str, *, kinds: Collection[str]) -> list[AnyKnob]:
    """Every knob for this model. kinds: of its kernels that the library has for the provider."""
    chosen: list[AnyKnob] = _cpu(facts) if provider == CPU else _cuda_kernels(facts)
    chosen += _kinds(kinds, provider)
    chosen += _optimizers(facts, provider)
    if kinds:  # the original nodes instead of our kernels: never slower than without onnxopt
        chosen.append(Knob("session_config", "onnxopt.disable", ("0", "1"), "0"))
    chosen.append(Knob("session_options", "graph_optimization_level", ("all", "extended", "basic"), "all"))
    return chosen if provider == CPU else chosen + _cuda_rest(facts)


def _kinds(kinds: Collection[str], provider: str) -> list[AnyKnob]:
    """Each kind of kernels given back to ONNX Runtime, and those of channels last together, in its own layout too."""
    if len(kinds) < 2:
        return []  # that is onnxopt.disable
    together = sorted(CHANNELS_LAST & set(kinds))
    layout = [kernels("channels last", together, _NHWC)] if together and provider != CPU else []
    return [*layout, *(kernels(kind, [kind]) for kind in sorted(kinds))]


def _cuda_kernels(facts: Facts) -> list[AnyKnob]:
    """Options that decide which kernels the CUDA EP takes."""
    chosen: list[AnyKnob] = []
    on_off, off_on = ("1", "0"), ("0", "1")
    if facts.convolutions:
        chosen += [
            _NHWC,  # each option costs time in some models that both together make faster
            Knob("provider_options", "prefer_nhwc", off_on, "0"),
            Knob("provider_options", "cudnn_conv_algo_search", ("EXHAUSTIVE", "HEURISTIC", "DEFAULT"), "EXHAUSTIVE"),
            Knob("provider_options", "fuse_conv_bias", off_on, "0"),
            Knob("provider_options", "cudnn_conv_use_max_workspace", on_off, "1"),
        ]
    if facts.convolutions_1d:
        chosen.append(Knob("provider_options", "cudnn_conv1d_pad_to_nc1d", off_on, "0"))
    if facts.attention:
        # ORT's AttentionBackend: 1 flash, 2 memory efficient, 4 TensorRT's fused, 8 cuDNN's flash, 16 unfused.
        chosen.append(Knob("provider_options", "sdpa_kernel", ("0", "1", "2", "4", "8", "16"), "0"))
    return chosen


def _cuda_rest(facts: Facts) -> list[AnyKnob]:
    """Options that seldom change anything."""
    chosen: list[AnyKnob] = []
    if facts.float32_products:
        chosen.append(Knob("provider_options", "use_tf32", ("1", "0"), "1"))
    if facts.products:
        chosen.append(_TUNABLE)
    chosen.append(Knob("provider_options", "use_ep_level_unified_stream", ("0", "1"), "0"))
    return chosen


def _optimizers(facts: Facts, provider: str) -> list[AnyKnob]:
    """ONNX Runtime's fusions that match operators of the model and that cost more than they save in some models."""
    rows = {
        "MatMulAddFusion": {"MatMul", "Add"},  # on CUDA its Gemm writes the bias with a kernel of its own
        "QuickGeluFusion": {"Sigmoid", "Mul"},  # as a kernel slower than the convolution before it
        "ConvAddActivationFusion": {"Conv"},
        "ConvActivationFusion": {"Conv"},
        "BiasGeluFusion": {"Gelu"},
        "SkipLayerNormFusion": {"LayerNormalization"},
        "BiasSoftmaxFusion": {"Softmax", "Add"},
        "MatmulTransposeFusion": {"MatMul", "Transpose"},
        "TransposeOptimizer": {"Transpose"},
    }
    if provider == CPU and "NchwcTransformer" not in facts.trapping_optimizers:
        rows["NchwcTransformer"] = {"Conv"}
    return [optimizer(name) for name, ops in rows.items() if ops <= facts.ops]


def _cpu(facts: Facts) -> list[AnyKnob]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = sorted({1, max(1, cores // 2), cores})
    return [
        Knob("session_options", "intra_op_num_threads", (0, *threads), 0),
        Knob("session_config", "session.intra_op.allow_spinning", ("1", "0"), "1"),
        Knob("session_config", "session.dynamic_block_base", ("0", "4"), "0"),
        Knob("session_options", "enable_cpu_mem_arena", (True, False), True),
        Knob("session_options", "enable_mem_pattern", (True, False), True),
        Knob("session_options", "execution_mode", ("sequential", "parallel"), "sequential"),
    ]
