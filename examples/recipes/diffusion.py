"""A diffusion model as two ONNX models: the UNet, which runs once a step, and the decoder of the VAE, which runs once.

    python diffusion.py FOLDER [--small]               exports FOLDER/unet and FOLDER/vae
    python diffusion.py FOLDER --generate [--small]    runs steps of DDIM with both artifacts, and compares with PyTorch

UNet: sample [batch, 4, height, width], timestep [batch], int64, and text [batch, tokens, features] to noise, as sample.
VAE: latents [batch, 4, height, width] to image [batch, 3, 8 height, 8 width], with the scale of latents inside. Needs
diffusers. The networks have half of the widths of Stable Diffusion 1.5 and random weights; `unet` and `vae` are the
places for your own.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch
from diffusers import AutoencoderKL, DDIMScheduler, UNet2DConditionModel

STEPS = 3
Network = Callable[..., torch.Tensor]


def unet(small: bool) -> UNet2DConditionModel:
    """UNet2DConditionModel.from_pretrained(..., subfolder="unet") in place of the random weights."""
    torch.manual_seed(0)
    if not small:
        return UNet2DConditionModel(block_out_channels=(160, 320, 640, 640), cross_attention_dim=768).eval()
    blocks = {
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    }
    sizes = {"block_out_channels": (32, 64), "layers_per_block": 1, "norm_num_groups": 8, "cross_attention_dim": 32}
    return UNet2DConditionModel(**blocks, **sizes).eval()


def vae(small: bool) -> AutoencoderKL:
    """AutoencoderKL.from_pretrained(..., subfolder="vae") in place of the random weights."""
    torch.manual_seed(0)
    widths = (16, 16, 32, 32) if small else (64, 128, 256, 256)
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4}
    return AutoencoderKL(block_out_channels=widths, norm_num_groups=8, latent_channels=4, **blocks).eval()


class Noise(torch.nn.Module):
    def __init__(self, model: UNet2DConditionModel):
        super().__init__()
        self.model = model

    def forward(self, sample: torch.Tensor, timestep: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        noise: torch.Tensor = self.model(sample, timestep, text, return_dict=False)[0]
        return noise


class Image(torch.nn.Module):
    def __init__(self, model: AutoencoderKL):
        super().__init__()
        self.model = model

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        image: torch.Tensor = self.model.decode(latents / self.model.config.scaling_factor, return_dict=False)[0]
        return image


def inputs(small: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise to begin with, and the text encoder's states for two prompts."""
    generator = torch.Generator().manual_seed(1)
    side, tokens, features = (8, 7, 32) if small else (32, 77, 768)
    return torch.randn(2, 4, side, side, generator=generator), torch.randn(2, tokens, features, generator=generator)


def export(folder: Path, small: bool) -> None:
    sample, text = inputs(small)
    batch = {0: torch.export.Dim("batch")}
    feeds = {"sample": sample, "timestep": torch.tensor([981, 1]), "text": text}
    write(folder / "unet", Noise(unet(small)).eval(), feeds, "noise", (batch, batch, batch))
    write(folder / "vae", Image(vae(small)).eval(), {"latents": sample}, "image", (batch,))


def write(folder: Path, module: torch.nn.Module, feeds: dict[str, torch.Tensor], output: str, shapes: object) -> None:
    """model.onnx, and inputs.npz and expected.npz for check.py."""
    with torch.no_grad():
        expected = module(*feeds.values())
    folder.mkdir(parents=True, exist_ok=True)
    torch.onnx.export(
        module,
        tuple(feeds.values()),
        folder / "model.onnx",
        dynamo=True,
        opset_version=20,
        input_names=list(feeds),
        output_names=[output],
        dynamic_shapes=shapes,
        verbose=False,
    )
    np.savez(folder / "inputs.npz", **{name: one.numpy() for name, one in feeds.items()})
    np.savez(folder / "expected.npz", **{output: expected.numpy()})


def opened(folder: Path) -> Network:
    """The artifact as a function of tensors."""
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(folder / "artifact" / "lib" / "libonnxopt_ops.so"))
    path = folder / "artifact" / "model.onnx"
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]

    def run(*tensors: torch.Tensor) -> torch.Tensor:
        feeds = {name: tensor.numpy() for name, tensor in zip(names, tensors, strict=True)}
        return torch.from_numpy(session.run(None, feeds)[0])

    return run


def picture(noise_of: Network, image_of: Network, sample: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
    scheduler = DDIMScheduler()
    scheduler.set_timesteps(STEPS)
    for step in scheduler.timesteps:
        sample = scheduler.step(noise_of(sample, step.expand(len(sample)), text), step, sample).prev_sample
    return image_of(sample)


def compare(folder: Path, small: bool) -> None:
    sample, text = inputs(small)
    with torch.no_grad():
        image = picture(opened(folder / "unet"), opened(folder / "vae"), sample, text)
        expected = picture(Noise(unet(small)), Image(vae(small)), sample, text)
    difference, limit = float((image - expected).abs().max()), 1e-3 * float(expected.abs().max())
    print(f"image {list(image.shape)}: max difference from PyTorch {difference:.2g} (limit {limit:.2g})")
    if not difference <= limit:
        raise SystemExit("the images differ")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--small", action="store_true", help="two narrow blocks, as the tests take")
    parser.add_argument("--generate", action="store_true")
    arguments = parser.parse_args()
    (compare if arguments.generate else export)(arguments.folder, arguments.small)
