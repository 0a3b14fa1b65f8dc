"""Generate text with a small GPT: `python examples/generation.py [--small]`.

The cache of keys and values has a fixed length, so the step that makes one token has the same shapes each time: weft compiles it
once. A word is written into the cache in place; what lies beyond it is masked.
"""

from __future__ import annotations

import math
import sys
import time

import torch
from torch import Tensor, nn

import weft


class Layer(nn.Module):
    """Attention over the cache, and a feed-forward part, each after a norm and added to what came in."""

    def __init__(self, width: int, heads: int, longest: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm_after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("keys", torch.zeros(1, heads, longest, width // heads))
        self.register_buffer("values", torch.zeros(1, heads, longest, width // heads))

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        """Gives the words [1, n, width] after this layer; `places` [n] say where they are in the text."""
        q, k, v = (self.split(each) for each in self.mixed(self.norm(x)).chunk(3, -1))
        self.keys.index_copy_(2, places, k)
        self.values.index_copy_(2, places, v)
        scores = q @ self.keys.mT / math.sqrt(q.shape[-1])
        seen = torch.arange(self.keys.shape[2]) <= places[:, None]
        mixed = torch.softmax(scores.masked_fill(~seen, -math.inf), -1) @ self.values
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm_after(x))))

    def split(self, x: Tensor) -> Tensor:
        """Splits [1, n, width] into heads: [1, heads, n, width of one]."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class GPT(nn.Module):
    """Words and places to logits of the next words."""

    def __init__(self, words: int, width: int, heads: int, layers: int, longest: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(longest, width)
        self.layers = nn.ModuleList(Layer(width, heads, longest) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, words: Tensor, places: Tensor) -> Tensor:
        """Gives for the last of `words` [1, n] at `places` [n] the logits of what follows: [1, words]."""
        x = self.words(words) + self.places(places)
        for layer in self.layers:
            x = layer(x, places)
        return self.norm(x[:, -1]) @ self.words.weight.T


def generate(model: nn.Module, prompt: Tensor, count: int) -> Tensor:
    """Adds `count` words to `prompt` [1, n], each the most probable one."""
    text = prompt
    words, places = prompt, torch.arange(prompt.shape[1])
    for _ in range(count):
        words = model(words, places).argmax(-1, keepdim=True)
        text, places = torch.cat([text, words], 1), places[-1:] + 1
    return text


def main(small: bool) -> None:
    """Generates with eager PyTorch and with weft, and compares words and times."""
    torch.manual_seed(0)
    width, layers, count = (64, 1, 4) if small else (512, 8, 64)
    model = GPT(1000, width, 4, layers, longest=128).eval()
    prompt = torch.randint(1000, (1, 16))
    fast = weft.compile(model)
    with torch.no_grad():
        generate(fast, prompt, 2)  # compiles
        begin = time.perf_counter()
        wanted = generate(model, prompt, count)
        between = time.perf_counter()
        found = generate(fast, prompt, count)
        end = time.perf_counter()
    if not torch.equal(found, wanted):
        raise SystemExit("other words than eager's")
    print(f"{count} words, the same as eager's")
    print(f"a word takes {(end - between) / count * 1e3:.2f} ms, in eager {(between - begin) / count * 1e3:.2f}")


if __name__ == "__main__":
    main("--small" in sys.argv[1:])
