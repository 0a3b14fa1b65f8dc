"""Networks that the package transformers has no class of, written as people write them: a U-Net, and an LSTM over words."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

_GROUPS = 4


class UNet(nn.Module):
    """Residual blocks of convolutions down to smaller pictures and back up, joined with what was there before, as diffusion has it.

    Args:
        channels: of the first level, a multiple of 4; each level below has twice as many, at most four times as many.
        levels: how often pictures are halved; their height and width are multiples of 2 to this power.
        attention: positions of the smallest pictures attend to one another.
    """

    def __init__(self, channels: int = 16, levels: int = 1, *, attention: bool = False) -> None:
        super().__init__()
        widths = [channels * min(2**level, 4) for level in range(levels + 1)]
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.before = nn.ModuleList(_Residual(width, width) for width in widths[:-1])
        self.down = nn.ModuleList(nn.Conv2d(width, below, 3, 2, 1) for width, below in pairwise(widths))
        self.inner = nn.ModuleList([_Residual(widths[-1], widths[-1])])
        if attention:
            self.inner += [_Attention(widths[-1]), _Residual(widths[-1], widths[-1])]
        self.up = nn.ModuleList(nn.Conv2d(below, width, 3, padding=1) for width, below in pairwise(widths))
        self.after = nn.ModuleList(_Residual(2 * width, width) for width in widths[:-1])
        self.last = nn.Sequential(nn.GroupNorm(_GROUPS, channels), nn.SiLU(), nn.Conv2d(channels, 3, 3, padding=1))

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Gives pictures of the size of `pixel_values`, [batch, 3, height, width]."""
        hidden = self.first(pixel_values)
        seen: list[Tensor] = []
        for block, down in zip(self.before, self.down, strict=True):
            seen.append(block(hidden))
            hidden = down(seen[-1])
        for block in self.inner:
            hidden = block(hidden)
        for block, up, level in reversed(list(zip(self.after, self.up, seen, strict=True))):
            hidden = block(torch.cat([up(functional.interpolate(hidden, scale_factor=2.0)), level], 1))
        return self.last(hidden)


class _Residual(nn.Module):
    """Two convolutions, each behind a group norm and SiLU, beside what came in."""

    def __init__(self, given: int, width: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(_GROUPS, given), nn.SiLU(), nn.Conv2d(given, width, 3, padding=1))
        self.second = nn.Sequential(nn.GroupNorm(_GROUPS, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1))
        self.beside = nn.Identity() if given == width else nn.Conv2d(given, width, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.beside(hidden) + self.second(self.first(hidden))


class _Attention(nn.Module):
    """Attention of one head among the positions of a picture."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(_GROUPS, width)
        self.projections = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        rows = self.norm(hidden).flatten(2).transpose(1, 2)
        query, key, value = self.projections(rows).chunk(3, -1)
        mixed = self.out(functional.scaled_dot_product_attention(query, key, value))
        return hidden + mixed.transpose(1, 2).reshape(hidden.shape)


class Recurrent(nn.Module):
    """Words through two layers of an LSTM, and the logarithms of a softmax over the words that may follow.

    Args:
        words: how many words there are.
        width: of embeddings and states.
    """

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.LSTM(width, width, 2, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, words)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Gives for each of `input_ids`, [batch, length], what may follow, [batch, length, words]."""
        hidden, _ = self.layers(self.words(input_ids))
        return torch.log_softmax(self.out(self.norm(hidden)), -1)
