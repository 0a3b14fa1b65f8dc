"""Blocks of well-known models, in plain PyTorch as their authors write them, small."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, KV_HEADS, HIDDEN = 32, 4, 2, 48


def rotate_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def rotary(x: Tensor, position: Tensor) -> Tensor:
    size = x.shape[-1]
    frequency = 1.0 / (10000.0 ** (torch.arange(0, size, 2).float() / size))
    angle = position[:, None].float() * frequency
    angle = torch.cat((angle, angle), dim=-1)
    return x * angle.cos().to(x.dtype) + rotate_half(x) * angle.sin().to(x.dtype)


class RmsNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(size) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


def repeat_kv(x: Tensor, count: int) -> Tensor:
    batch, heads, steps, size = x.shape
    return x[:, :, None].expand(batch, heads, count, steps, size).reshape(batch, heads * count, steps, size)


class Llama(nn.Module):
    """Rotary embedding, grouped heads, a cache of keys and values, SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        size = WIDTH // HEADS
        self.query = nn.Linear(WIDTH, HEADS * size, bias=False)
        self.key = nn.Linear(WIDTH, KV_HEADS * size, bias=False)
        self.value = nn.Linear(WIDTH, KV_HEADS * size, bias=False)
        self.out = nn.Linear(HEADS * size, WIDTH, bias=False)
        self.gate = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)
        self.before, self.after = RmsNorm(WIDTH), RmsNorm(WIDTH)

    def forward(self, x: Tensor, past_keys: Tensor, past_values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, steps, _ = x.shape
        past = past_keys.shape[2]
        normed = self.before(x)
        q = self.query(normed).view(batch, steps, HEADS, -1).transpose(1, 2)
        k = self.key(normed).view(batch, steps, KV_HEADS, -1).transpose(1, 2)
        v = self.value(normed).view(batch, steps, KV_HEADS, -1).transpose(1, 2)
        position = torch.arange(past, past + steps)
        q, k = rotary(q, position), rotary(k, position)
        k, v = torch.cat((past_keys, k), dim=2), torch.cat((past_values, v), dim=2)
        keys, values = repeat_kv(k, HEADS // KV_HEADS), repeat_kv(v, HEADS // KV_HEADS)
        scores = q @ keys.transpose(2, 3) / math.sqrt(q.shape[-1])
        later = torch.arange(past + steps)[None, :] > position[:, None]
        scores = scores.masked_fill(later, float("-inf"))
        weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        mixed = (weights @ values).transpose(1, 2).contiguous().view(batch, steps, -1)
        x = x + self.out(mixed)
        normed = self.after(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed)), k, v


class Gpt2(nn.Module):
    """One matrix for queries, keys and values, a mask in a buffer, GELU by tanh."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attend, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("mask", torch.tril(torch.ones(64, 64)).view(1, 1, 64, 64))

    def forward(self, x: Tensor) -> Tensor:
        batch, steps, width = x.size()
        q, k, v = self.attend(self.first(x)).split(width, dim=2)
        q, k, v = (t.view(batch, steps, HEADS, width // HEADS).transpose(1, 2) for t in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.mask[:, :, :steps, :steps] == 0, float("-inf"))
        mixed = self.dropout(F.softmax(scores, dim=-1)) @ v
        x = x + self.out(mixed.transpose(1, 2).contiguous().view(batch, steps, width))
        return x + self.dropout(self.down(F.gelu(self.up(self.second(x)), approximate="tanh")))


class Bert(nn.Module):
    """Norms after the sums, and a mask of padding as a large negative number."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.kinds = nn.Embedding(50, WIDTH), nn.Embedding(2, WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out, self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH, eps=1e-12) for _ in range(3))

    def heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], HEADS, WIDTH // HEADS).permute(0, 2, 1, 3)

    def forward(self, words: Tensor, kinds: Tensor, present: Tensor) -> Tensor:
        x = self.norms[0](self.words(words) + self.kinds(kinds))
        bias = (1.0 - present[:, None, None, :].to(x.dtype)) * -10000.0
        q, k, v = (self.heads(layer(x)) for layer in (self.query, self.key, self.value))
        weights = nn.functional.softmax(q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS) + bias, dim=-1)
        mixed = (weights @ v).permute(0, 2, 1, 3).contiguous()
        mixed = mixed.view(*mixed.shape[:-2], WIDTH)
        x = self.norms[1](self.out(mixed) + x)
        return self.norms[2](self.down(F.gelu(self.up(x))) + x)


class VisionTransformer(nn.Module):
    """Patches by a convolution, PyTorch's own attention, a token for the class."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, stride=4)
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.norm, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.all, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))
        self.classes = nn.Linear(WIDTH, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), dim=1)
        batch, steps, width = x.shape
        q, k, v = (
            self.all(self.norm(x)).reshape(batch, steps, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        )
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, steps, width)
        x = x + self.out(mixed)
        x = x + self.mlp(self.after(x))
        return self.classes(x[:, 0])


class T5(nn.Module):
    """A bias that depends on the distance, in buckets; scores without a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Embedding(8, HEADS)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.out, self.norm = nn.Linear(WIDTH, WIDTH, bias=False), RmsNorm(WIDTH)

    @staticmethod
    def bucket(distance: Tensor) -> Tensor:
        far = 4
        distance = -torch.min(distance, torch.zeros_like(distance))
        log = far + (torch.log(distance.float() / far) / math.log(16 / far) * far).to(torch.long)
        log = torch.min(log, torch.full_like(log, 7))
        return torch.where(distance < far, distance, log)

    def forward(self, x: Tensor) -> Tensor:
        batch, steps, _ = x.shape
        normed = self.norm(x)
        q, k, v = (
            layer(normed).view(batch, steps, HEADS, -1).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        distance = torch.arange(steps)[None, :] - torch.arange(steps)[:, None]
        bias = self.bias(self.bucket(distance)).permute(2, 0, 1).unsqueeze(0)
        scores = torch.matmul(q, k.transpose(3, 2)) + bias
        weights = F.softmax(scores.float(), dim=-1).type_as(scores)
        mixed = torch.matmul(weights, v).transpose(1, 2).contiguous().view(batch, -1, WIDTH)
        return x + self.out(mixed)


class Experts(nn.Module):
    """A router that takes the best two of four, each expert on all tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4, bias=False)
        self.up = nn.Parameter(torch.randn(4, WIDTH, HIDDEN) / 6)
        self.down = nn.Parameter(torch.randn(4, HIDDEN, WIDTH) / 6)

    def forward(self, x: Tensor) -> Tensor:
        batch, steps, width = x.shape
        tokens = x.view(-1, width)
        chance = F.softmax(self.router(tokens), dim=1, dtype=torch.float)
        best, chosen = torch.topk(chance, 2, dim=-1)
        best = (best / best.sum(dim=-1, keepdim=True)).to(x.dtype)
        gates = torch.zeros_like(chance, dtype=x.dtype).scatter(1, chosen, best)
        hidden = F.silu(torch.einsum("td,edh->teh", tokens, self.up))
        made = torch.einsum("teh,ehd->ted", hidden, self.down)
        return torch.einsum("ted,te->td", made, gates).view(batch, steps, width)


class Scan(nn.Module):
    """A state space with a scan by steps, as in Mamba's reference."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(WIDTH, WIDTH + 2 * 4), nn.Linear(WIDTH, WIDTH)
        self.decay, self.skip = nn.Parameter(torch.rand(WIDTH, 4)), nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        delta, b, c = self.project(x).split([WIDTH, 4, 4], dim=-1)
        delta = F.softplus(delta)
        keep = torch.exp(delta.unsqueeze(-1) * -self.decay)
        add = (delta * x).unsqueeze(-1) * b.unsqueeze(2)
        total = torch.cumsum(torch.log(keep.float()), dim=1)
        state = torch.exp(total) * torch.cumsum(add.float() * torch.exp(-total), dim=1)
        y = torch.einsum("blds,bls->bld", state.to(x.dtype), c) + x * self.skip
        return self.out(F.silu(y))


def llama_inputs(batch: int, steps: int) -> tuple[Tensor, ...]:
    size = WIDTH // HEADS
    return torch.randn(batch, steps, WIDTH), *(torch.randn(batch, KV_HEADS, 2 * steps, size) for _ in range(2))


def hidden(batch: int, steps: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, steps, WIDTH),)


def bert_inputs(batch: int, steps: int) -> tuple[Tensor, ...]:
    present = torch.ones(batch, steps, dtype=torch.long)
    present[0, -1] = 0
    return torch.randint(50, (batch, steps)), torch.randint(2, (batch, steps)), present


def images(batch: int, steps: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 3, 4 * steps, 8),)


MODELS = {
    "llama": (Llama, llama_inputs),
    "gpt2": (Gpt2, hidden),
    "bert": (Bert, bert_inputs),
    "vit": (VisionTransformer, images),
    "t5": (T5, hidden),
    "experts": (Experts, hidden),
    "scan": (Scan, hidden),
}
"""By name: the module, and its inputs for a batch and a number of steps."""
