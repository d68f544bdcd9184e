"""A sample of the mutations of tests/fuzz/library, and changes that once ended the process.

`make fuzz` examines more mutations, and repeats these tests with --sanitizers (tests/fuzz/library/build.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onnxopt.codegen import sealed_json
from tests.fuzz.library import build, campaign, corpus
from tests.support.custom_ops.custom_ops_damage import set_field

INDEX = "kernels.0.index"
EXCHANGED = {"weight": 4, "channels": 24, "bias": 3}
# name: model, path, value, what the message must say
CHANGES: dict[str, tuple[str, str, Any, str]] = {
    "offset of an access": ("rotary", f"{INDEX}.accesses.1.offset", [4096], "access 1 would read outside of input 0"),
    "a little less": ("rotary", f"{INDEX}.accesses.0.offset", [-5], "access 0 would read outside of input 0"),
    "a little more": ("padded", f"{INDEX}.accesses.0.offset", [-10], "access 0 would read outside of input 0"),
    "offset of 2^40": ("rotary", f"{INDEX}.accesses.1.offset", [2**40], "would read outside of input 0"),
    "offsets that overflow": ("rotary", f"{INDEX}.accesses.1.offset", [2**62, 2**62], "an offset exceeds 2^63"),
    "offset where nothing is read": ("rotary", f"{INDEX}.accesses.0.offset", [-(2**60)], "position lies too far away"),
    "stride of 2^32": ("rotary", f"{INDEX}.accesses.0.terms.0.2", 2**32, "would read outside of input 0"),
    "stride below": ("rotary", f"{INDEX}.accesses.2.terms.0.2", -1, "access 2 would read outside of input 1"),
    "div of 2^62": ("rotary", f"{INDEX}.accesses.0.terms.0.0", 2**62, "a term leaves the domain"),
    "mod one larger": ("rotary", f"{INDEX}.accesses.2.terms.0.1", 9, "access 2 would read outside of input 1"),
    "div of a condition": ("rotary", f"{INDEX}.conditions.0.terms.0.0", 5, "places that do not fit into one another"),
    "guard that is another": ("rotary", f"{INDEX}.accesses.0.guards", [1], "access 0 would read outside of input 0"),
    "no guards": ("rotary", f"{INDEX}.accesses.0.guards", [], "access 0 would read outside of input 0"),
    "a bound of 2^62": ("rotary", f"{INDEX}.conditions.0.high", [2**62], "a bound lies too far away"),
    "a wider condition": ("rotary", f"{INDEX}.conditions.0.low", [3], "access 0 would read outside of input 0"),
    "an output twice as large": ("rotary", f"{INDEX}.shapes.0.1", 16, "differ in size"),
    "an output half as large": ("rotary", f"{INDEX}.shapes.1.1", 4, "differ in size"),
    "a longer dim to look up": ("gathered", f"{INDEX}.accesses.3.lookup.1", 4096, "would read outside of input 0"),
    "a lookup by nothing": ("gathered", f"{INDEX}.accesses.3.lookup.0", 99, "value 99 is no int32 or int64"),
    "a lookup by floats": ("gathered", f"{INDEX}.accesses.3.lookup.0", 4, "value 4 is no int32 or int64"),
    "a lookup far away": ("gathered", f"{INDEX}.accesses.3.lookup.2", 2**62, "a position lies too far away"),
    "a lookup backward": ("gathered", f"{INDEX}.accesses.3.lookup.2", -16, "a lookup is less than 1"),
    "more rows than are stored": ("joined", "kernels.0.domain.0", [4, 0, 1], "is not that of the rows"),
    "rows of another access": ("joined", "kernels.0.operands.0.row", True, "access 0 is not the same for a whole row"),
    "a part with an index": ("joined", "kernels.0.stages.0.element.index", {}, 'index has no field "symbols"'),
    "an entry point across rows of a cluster": ("strided", "kernels.0.variants.0.lanes", 16384, "variants[0].lanes"),
    "a view of 2^62 times 4": ("groups", "kernels.0.views.0.target", [2**62, 4, -1], "more than 2^63 elements"),
    "a scan without a chunk": ("scan", "kernels.0.variants.0.unroll", 0, "scans go along their rows chunk by chunk"),
    "channels of 2^31": ("depthwise", "kernels.0.channels", 2**31 - 1, "is not [N, H, W, x_channels]"),
    "a larger kernel": ("depthwise", "kernels.0.window.kernel.0", 4, "is not [window.kernel[0], window.kernel[1], 1,"),
    "another weight": ("depthwise", "kernels.0.weight", 2, "that nothing reads"),
    "one number for all": ("depthwise", "kernels.0.epilogue.reads.1.form", "scalar", "is not read by scalar beside"),
    "padding of another tensor": ("depthwise", "kernels.0.prologue.reads.0.form", "element", "tensor by element"),
    "a band of 3 tiles": ("depthwise", "kernels.0.variants.0.across", 3, "does not divide a product's rows"),
    "groups of 64": ("packed", "kernels.0.codes.group", 64, "do not fit together"),
    "codes of bytes": ("packed", "kernels.0.codes.bits", 8, "do not fit together"),
    "another order of inputs": ("packed", "kernels.0.codes.scales", 4, "have an input 2 that nothing reads"),
    "a gate that nothing runs": ("packed_bytes", "kernels.0.gate", "silu", "gate does not go with this product"),
    "no gate for many rows": ("packed_gate", "kernels.0.variants.4.role", "codes", "has not the entry points for a"),
    "none for many rows": ("packed", "kernels.0.variants.3.role", "codes", "has not one entry point that turns codes"),
    "an image of 4 channels": ("image_convolution", "kernels.0.channels", 4, "is not [N, channels, H, W]"),
    "an image of pixels": ("image_convolution", "kernels.0.planes", False, "is not [N, H, W, channels]"),
    "fewer filters": ("image_convolution", "kernels.0.filters", 8, "does not divide the kernel's filters"),
    "heads of one group": ("attention_masked", "kernels.0.groups", 1, "do not fit together"),
    "more new tokens": ("attention_masked", "kernels.0.tokens", 4, "do not fit together"),
    "heads of another tensor": ("flash_attention", "kernels.0.q.row", 136, "q [4, 9, 144] does not fit"),
    "more heads of keys": ("flash_attention_apart", "kernels.0.groups", 1, "does not fit"),
    "a tile without keys": ("flash_attention", "kernels.0.variants.0.keys", 0, "keys is not an integer from 16"),
    "slopes of one": ("image_convolution", "kernels.0.epilogue.reads.0.form", "scalar", "is not read by scalar beside"),
    "a block of 3 columns": ("image_of_pixels", "kernels.0.variants.0.across", 24, "does not divide a block's outputs"),
    "a wide access": ("depthwise_strided", "kernels.0.variants.0.vector", 8, "is wider than one access"),
    "an expansion of fewer channels": ("depthwise_expanded", "kernels.0.expansion.channels", 16, "is not [N, H, W, x_"),
    "a 1x1 weight and its bias exchanged": ("depthwise_expanded", "kernels.0.expansion", EXCHANGED, "is not [chan"),
    "walking down": ("depthwise_walking", "kernels.0.variants.0.down", 2, "down is not 1"),
    "an operand that is not read": ("codes", "kernels.1.unread.0", 0, "has an input that the kernel reads"),
    "products of codes themselves": ("codes", "kernels.1.inputs.0", "uint8", "have other dtypes for a than for b"),
    "norms of more channels": ("group_norm", "kernels.0.channels", 48, "is not [N, H, W, channels]"),
    "a sample for all": ("group_norm", "kernels.0.prologue.reads.1.form", "channel", "is not read by channel beside"),
    "more groups than bias": ("group_norm", "kernels.0.epilogue.reads.0.form", "channel", "not read by channel beside"),
    "a slab of half a group": ("group_norm", "kernels.0.variants.0.vector", 1, "are not those of whole groups"),
    "more hidden channels": ("squeeze_excite", "kernels.0.hidden", 512, "first.weight [4, 16] is not [hidden,"),
    "a map of fewer channels": ("squeeze_excite", "kernels.0.depthwise.channels", 8, "has other channels than"),
    "more results": ("squeeze_excite", "kernels.0.results", 2048, "second.weight [16, 4] is not [results, hidden]"),
    "a mean of another shape": ("squeeze_excite", "kernels.0.depthwise.x", 1, "that nothing reads"),
    "more experts": ("experts", "kernels.0.experts", 8, "first [4, 64, 64] is not [experts, columns, wide], here [8,"),
    "experts of more columns": ("experts", "kernels.0.columns", 72, "x [3, 64] is not [N, columns], here [3, 72]"),
    "a tile of 40 columns": ("experts", "kernels.0.variants.0.columns", 40, "sides of tiles that do not fit"),
    "padding beyond the window": ("max_pool", "kernels.0.window.pads.3", 2, "are not smaller than the kernel"),
    "a stride of 2^31": ("max_pool", "kernels.0.window.strides.0", 2**31, "strides[0] is not an integer from 1"),
    "a tile of nothing": ("average_pool", "kernels.0.variants.0.across", 0, "across is not an integer from 1"),
    "steps beside auto_pad": ("average_pool", "kernels.0.window.dilations.1", 2, "are not 1 beside auto_pad"),
    "groups of 2^31": ("grouped", "kernels.0.group", 2**31 - 1, "the weight does not fit the input"),
    "padding of 2^31": ("added_last", "kernels.0.window.pads.0", 2**31 - 1, "a dim of the result is above 2^31"),
    "more rows than a stride": ("spread", "kernels.0.output_padding.0", 2, "output_padding is not below the strides"),
    "a bound below 0": ("bounded", "kernels.0.activation_value", -1, "activation_value is no upper bound above 0"),
    "a slope that is the input": ("sloped", "kernels.0.slope", 0, "have an input 4 that nothing reads"),
    "a part behind its tensor": ("block", "kernels.0.steps.1.x.first", 80, "x.channels reach beyond the tensor"),
    "a part of another width": ("block", "kernels.0.steps.1.x.of", 64, "x.of is not what channels says of the tensor"),
    "a part written twice": ("block", "kernels.0.steps.2.y.first", 32, "has channels that an earlier step wrote"),
    "groups in a block": ("dense_block", "kernels.0.steps.1.group", 8, "the weight does not fit the input"),
    "groups of an entry point": ("block", "kernels.0.steps.1.group", 64, "no convolution that a kernel of ours runs"),
    "slopes in a block": ("block", "kernels.0.steps.1.activation", "prelu", "does not go with the activation"),
    "a copy of another width": ("dense_block", "kernels.0.copies.0.x.channels", 7, "x has not the channels of y"),
    "a copy of a result": ("dense_block", "kernels.0.copies.0.x.tensor", 10, "x is no part of an input"),
    "a copy to an input": ("dense_block", "kernels.0.copies.0.y.tensor", 0, "no part of a tensor that steps write"),
    "a copy over a step": ("dense_block", "kernels.0.copies.0.y.first", 8, "has channels that an earlier step wrote"),
    "a transposed step of a block": ("block", "kernels.0.steps.1.transposed", True, "transposed is set in a block"),
    "an input for two": ("convolution", "kernels.0.residual", 0, "have an input 3 that nothing reads"),
}  # fmt: skip
# Changes that stay inside: a kernel of another model, for all that the library can tell.
INSIDE: dict[str, tuple[str, str, Any]] = {
    "a condition behind its run": ("rotary", f"{INDEX}.conditions.0.low", [2**20]),
    "a condition that never holds": ("long", f"{INDEX}.conditions.0.low", [10**6]),
    "a condition on other digits": ("rotary", f"{INDEX}.conditions.0.terms.0.0", 3),
    "both outputs larger": ("rotary", f"{INDEX}.shapes", [[[1, 0], 9], [[1, 0], 9]]),
}


@pytest.fixture(scope="module")
def programs(request: pytest.FixtureRequest) -> Path:
    return build.build(sanitized=request.config.getoption("--sanitizers"))


def examined(model: str, path: str, value: Any, programs: Path, file: str = campaign.KERNELS) -> tuple[str, str]:
    """The verdict on a file with one field changed and a digest that fits, and what was said."""
    original = corpus.files(model)
    document = sealed_json.unseal(original[file].decode())
    set_field(path, value)(document)
    ((verdict, text),) = campaign.examine(original, [{file: sealed_json.seal(document).encode()}], programs)
    return verdict, text


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_number_is_an_error_that_says_which(name: str, programs: Path) -> None:
    *change, message = CHANGES[name]
    verdict, text = examined(*change, programs)
    assert verdict in ("refused", "failed"), text
    assert message in text


@pytest.mark.parametrize(
    ("knob", "said"),
    [
        ([2**32 + 3, 1], "entries[0].knobs[1] is not a type and a value"),
        ([-1, 1], "entries[0].knobs[1] is not a type and a value"),
        ([3, 2**64 - 1], "entries[0].knobs[1][1] is not an integer of 64 bits"),
    ],
)
def test_a_knob_of_no_plan(knob: list[int], said: str, programs: Path) -> None:
    verdict, text = examined("convolution", "entries.0.knobs.1", knob, programs, "conv_plans.json")
    assert (verdict, said in text) == ("failed", True), text


@pytest.mark.parametrize("name", INSIDE)
def test_nothing_is_written_beyond_a_block(name: str, programs: Path) -> None:
    verdict, text = examined(*INSIDE[name], programs)
    assert verdict == "different", text


@pytest.mark.parametrize("way", campaign.WAYS)
@pytest.mark.parametrize("file", campaign.FILES)
def test_sample(file: str, way: str, programs: Path) -> None:
    tally = campaign.run(file, way, 150 if (file, way) == (campaign.KERNELS, "numbers") else 20, 0, programs)
    assert not [f"{f.model}: {f.verdict} {f.text}" for f in tally.findings]
    if (file, way) == (campaign.KERNELS, "numbers"):  # or nothing behind the reader would have been tried
        assert tally.verdicts["same"] + tally.verdicts["different"] + tally.verdicts["failed"] > 20


def test_a_fault_is_seen(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the tests above: the programs read one byte behind a tensor, and the campaign calls it a finding."""
    monkeypatch.setenv("MUTANTS_OVERFLOW", "1")
    verdict, text = examined("rotary", "kernels.0.cpu", True, programs)
    assert verdict == "stopped" and ("heap-buffer-overflow" in text or "AddressSanitizer: SEGV" in text)
    assert campaign.is_finding(campaign.KERNELS, "numbers", verdict, text)
