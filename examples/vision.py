"""Look at pictures with a small ConvNeXt: `python examples/vision.py [--small]`.

Convolutions stay calls of PyTorch's library. What lies between them, norms, activations, products and sums, becomes a few kernels.
"""

from __future__ import annotations

import sys
import time

import torch
from torch import Tensor, nn

import weft


class Block(nn.Module):
    """A convolution of each channel, a norm, and a feed-forward part of each pixel, added to what came in."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        """Gives pictures [batch, channels, height, width] of the same shape."""
        pixels = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        pixels = self.scale * self.down(nn.functional.gelu(self.up(pixels)))
        return x + pixels.permute(0, 3, 1, 2)


class Net(nn.Module):
    """Patches, stages of blocks of twice as many channels each, and the classes of a picture."""

    def __init__(self, channels: int, depths: tuple[int, ...], classes: int) -> None:
        super().__init__()
        parts: list[nn.Module] = [nn.Conv2d(3, channels, 4, 4)]
        for number, depth in enumerate(depths):
            if number:
                parts.append(nn.Conv2d(channels, 2 * channels, 2, 2))
                channels *= 2
            parts += [Block(channels) for _ in range(depth)]
        self.parts, self.norm, self.out = nn.Sequential(*parts), nn.LayerNorm(channels), nn.Linear(channels, classes)

    def forward(self, pictures: Tensor) -> Tensor:
        """Gives probabilities [batch, classes] for `pictures` [batch, 3, height, width]."""
        return torch.softmax(self.out(self.norm(self.parts(pictures).mean((2, 3)))), -1)


def main(small: bool) -> None:
    """Compares a call with eager's, in probabilities and time."""
    torch.manual_seed(0)
    model = (Net(16, (1, 1), 10) if small else Net(64, (2, 2, 4), 1000)).eval()
    pictures = torch.randn(2, 3, 64, 64) if small else torch.randn(4, 3, 224, 224)
    fast = weft.compile(model)
    with torch.no_grad():
        fast(pictures)  # compiles
        begin = time.perf_counter()
        wanted = model(pictures)
        between = time.perf_counter()
        found = fast(pictures)
        end = time.perf_counter()
        program = weft.optimize(model, (pictures,))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    print(f"right; {(end - between) * 1e3:.2f} ms, in eager {(between - begin) * 1e3:.2f}")
    print("kernels:", len(program.kernels))
    print("left to PyTorch:", ", ".join(dict.fromkeys(each.operation for each in program.fallbacks)) or "nothing")


if __name__ == "__main__":
    main("--small" in sys.argv[1:])
