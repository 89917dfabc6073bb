"""The trunks of an actor-critic: a multi-layer perceptron for flat observations, convolutions for images.

Every layer is initialised orthogonally from an explicit generator; nothing draws from torch's global one.
"""

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from offbeat.config import PolicyConfig
from offbeat.errors import UnsupportedSpace
from offbeat.workloads.control.columns import Spaces


def _tanh(inputs: Tensor) -> Tensor:
    return inputs.mul(2).sigmoid_().mul_(2).sub_(1)


class _TanhFunction(torch.autograd.Function):
    """tanh x = 2 sigmoid(2 x) - 1: torch's sigmoid is several times faster than its tanh without AVX-512."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        """Keep the outputs, which are all that the derivative needs."""
        outputs = _tanh(inputs)
        ctx.save_for_backward(outputs)
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """d tanh = 1 - tanh^2."""
        (outputs,) = ctx.saved_tensors
        return torch.ops.aten.tanh_backward(gradients[0], outputs)  # type: ignore[no-any-return]


class Tanh(nn.Module):
    """The hyperbolic tangent, made of the sigmoid; exact to float32's absolute precision around 1."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Elementwise; outside training without the bookkeeping of a gradient."""
        if not torch.is_grad_enabled():
            return _tanh(inputs)
        outputs: Tensor = _TanhFunction.apply(inputs)  # type: ignore[no-untyped-call]
        return outputs


ACTIVATIONS = {"tanh": Tanh, "relu": nn.ReLU, "elu": nn.ELU}
COARSE_FROM = 64  # Pixels: images at least this high and wide are first reduced by 4 instead of 2.


class Permute(nn.Module):
    """Images [N, H, W, C] as [N, C, H, W], without a copy."""

    def forward(self, images: Tensor) -> Tensor:
        """Move the channels to the front."""
        return images.permute(0, 3, 1, 2)


def make_trunk(config: PolicyConfig, spaces: Spaces, generator: torch.Generator) -> tuple[nn.Sequential, int]:
    """A trunk from scaled float observations [N, *shape] to features [N, F], and F."""
    layers, size = _convolutions(config, spaces, generator) if is_image(spaces) else _flat(spaces)
    for units in config.hidden_sizes:
        layers += [make_linear(size, units, math.sqrt(2), generator), ACTIVATIONS[config.activation]()]
        size = units
    return nn.Sequential(*layers), size


class Widening(nn.Module):
    """A linear layer from few inputs to more units, with its weight stored as [inputs, units].

    The weight's gradient is then inputs^T x gradient, which BLAS computes several times faster for few inputs.
    """

    def __init__(self, size: int, units: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, units))
        self.bias = nn.Parameter(torch.empty(units))

    def forward(self, inputs: Tensor) -> Tensor:
        """[N, inputs] to [N, units]."""
        return torch.addmm(self.bias, inputs, self.weight)


def make_linear(size: int, units: int, gain: float, generator: torch.Generator) -> nn.Linear | Widening:
    """A linear layer with orthogonal weights of this gain and zero biases."""
    layer = Widening(size, units) if size < units else skip_init(nn.Linear, size, units)  # type: ignore[no-untyped-call]
    _initialise(layer, gain, generator)
    return cast("nn.Linear | Widening", layer)


def is_image(spaces: Spaces) -> bool:
    """Whether observations go through convolutions: three axes, or two of bytes (a grey image)."""
    axes = len(spaces.observation_shape)
    return axes == 3 or (axes == 2 and spaces.observation_dtype == "uint8")


def _flat(spaces: Spaces) -> tuple[list[nn.Module], int]:
    shape = spaces.observation_shape
    return ([] if len(shape) == 1 else [nn.Flatten()]), math.prod(shape)


def _convolutions(config: PolicyConfig, spaces: Spaces, generator: torch.Generator) -> tuple[list[nn.Module], int]:
    layers, (channels, height, width) = _to_channels_first(spaces.observation_shape)
    stride = 4 if min(height, width) >= COARSE_FROM else 2
    for wanted in config.conv_channels:
        convolution: nn.Conv2d = skip_init(  # type: ignore[no-untyped-call]
            nn.Conv2d, channels, wanted, kernel_size=2 * stride, stride=stride, padding=stride // 2
        )
        _initialise(convolution, math.sqrt(2), generator)
        layers += [convolution, nn.ReLU()]
        channels, height, width, stride = wanted, height // stride, width // stride, 2
    if min(height, width) < 1:
        shape, count = spaces.observation_shape, len(config.conv_channels)
        raise UnsupportedSpace(f"images of shape {shape} are too small for {count} convolutions; shorten conv_channels")
    return [*layers, nn.Flatten()], channels * height * width


def _to_channels_first(shape: Sequence[int]) -> tuple[list[nn.Module], tuple[int, int, int]]:
    if len(shape) == 2:
        return [nn.Unflatten(1, (1, shape[0]))], (1, shape[0], shape[1])
    if shape[2] <= shape[0]:
        return [Permute()], (shape[2], shape[0], shape[1])
    return [], (shape[0], shape[1], shape[2])


def _initialise(layer: nn.Linear | nn.Conv2d | Widening, gain: float, generator: torch.Generator) -> None:
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
