"""One rank: a small CNN and a small GPT are trained on the GPU. Ranks and modes of the optimizer agree bit for bit, and the CPU's run within a tolerance."""

import torch
import torch.nn.functional as F
from torch import nn

import devices

TOLERANCE = 2e-3  # of parameters after STEPS of float32, relative to the larger of 1 and the value
STEPS = 12  # 4 on the fake driver
BATCH = 8  # of each rank
CHARACTERS, CONTEXT = 32, 16


class Convolution(nn.Module):
    """3 x 3, as a product of matrices where the device has no convolutions."""

    def __init__(self, inputs, outputs, plainly):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.plainly = plainly

    def forward(self, x):
        if self.plainly:
            return self.conv(x)
        columns = F.unfold(x, 3, padding=1)
        y = self.conv.weight.flatten(1) @ columns + self.conv.bias[:, None]
        return y.view(x.shape[0], -1, *x.shape[2:])


class Cnn(nn.Module):
    def __init__(self, plainly):
        super().__init__()
        self.layers = nn.Sequential(Convolution(1, 8, plainly), nn.ReLU(), nn.AvgPool2d(2), Convolution(8, 16, plainly), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten())
        self.out = nn.Linear(16 * 4, 10)

    def forward(self, x):
        return self.out(self.layers(x))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.register_buffer("mask", torch.full((CONTEXT, CONTEXT), float("-inf")).triu(1))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(self.before_attention(x)).split(width, dim=2))
        weights = (q @ k.transpose(-2, -1) / (width / self.heads) ** 0.5 + self.mask).softmax(-1)
        x = x + self.mix((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.before_mlp(x))


class Gpt(nn.Module):
    def __init__(self, plainly):
        super().__init__()
        self.tokens, self.places = nn.Embedding(CHARACTERS, 32), nn.Parameter(torch.randn(CONTEXT, 32) * 0.02)
        self.blocks = nn.Sequential(Block(32, 4), Block(32, 4))
        self.norm, self.out = nn.LayerNorm(32), nn.Linear(32, CHARACTERS)

    def forward(self, x):
        return self.out(self.norm(self.blocks(self.tokens(x) + self.places)))


def batch(model, step, rank):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    if model is Cnn:
        return torch.randn(BATCH, 1, 8, 8, generator=generator), torch.randint(0, 10, (BATCH,), generator=generator)
    text = torch.randint(0, CHARACTERS, (BATCH, CONTEXT + 1), generator=generator)
    return text[:, :-1], text[:, 1:]


def train(tl, kind, device, fake, overlap):
    torch.manual_seed(7)
    model = kind(not fake).to(device)
    tl.broadcast_parameters(model.state_dict(), root_rank=0)
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = tl.DistributedOptimizer(plain, model.named_parameters(), overlap=overlap)
    losses = []
    for step in range(4 if fake else STEPS):
        x, y = (tensor.to(device) for tensor in batch(kind, step, tl.rank()))
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out.reshape(-1, out.shape[-1]), y.reshape(-1))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    optimizer.close()
    result = torch.cat([tensor.detach().reshape(-1) for tensor in model.parameters()]).cpu()
    return result, [float(loss) for loss in losses]


def difference(left, right):
    return ((left - right).abs() / right.abs().clamp(min=1)).max().item()


def check(tl, kind, device, fake):
    name = kind.__name__
    torch.manual_seed(7)
    start = torch.cat([tensor.detach().reshape(-1) for tensor in kind(not fake).parameters()])
    on_cpu, _ = train(tl, kind, torch.device("cpu"), fake, False)
    default, losses = train(tl, kind, device, fake, False)
    overlapped, _ = train(tl, kind, device, fake, True)
    again, _ = train(tl, kind, device, fake, False)
    gathered = tl.allgather(default).view(tl.size(), -1)
    assert all(torch.equal(other, default) for other in gathered), f"{name}: ranks differ"
    assert difference(default, start) > 1e-2, f"{name}: nothing was trained"
    assert torch.isfinite(default).all(), f"{name}: a parameter is not finite"
    found = difference(default, on_cpu)
    assert found <= TOLERANCE, f"{name}: the CPU's run differs by {found:.3g}"
    deterministic = torch.equal(default, again)
    same = torch.equal(default, overlapped)
    # Where torch's own kernels differ from run to run, the modes cannot be the same.
    assert same or not deterministic, f"{name}: overlap differs from the default by {difference(overlapped, default):.3g}"
    assert difference(overlapped, on_cpu) <= TOLERANCE, f"{name}: with overlap the CPU's run differs"
    return {
        "difference_from_cpu": found, "tolerance": TOLERANCE, "repeated_run_bitwise": deterministic, "overlap_bitwise": same, "first_loss": losses[0],
        "last_loss": losses[-1],
    }


def main():
    args = devices.arguments(__doc__)
    device = devices.open_device(args.fake)
    import tensorlane.torch as tl

    tl.init()
    figures = {kind.__name__: check(tl, kind, device, args.fake) for kind in (Cnn, Gpt)}
    assert not devices.violations(device), devices.violations(device)[:3]
    tl.barrier()
    devices.write(args.out, tl.rank(), figures)
    tl.shutdown()


if __name__ == "__main__":
    main()
