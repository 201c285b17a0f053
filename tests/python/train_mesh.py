"""Trains a small transformer as TorchTitan lays one out: FSDP2 over one dimension of a mesh, tensor parallel with sequence
parallel over the other, gradients clipped, a checkpoint in the middle from which a new model goes on.

    train_mesh.py BACKEND FOLDER [TENSOR]

BACKEND is what init_process_group() is given, and all that differs between two runs. FOLDER is for the checkpoint. TENSOR ranks
(default: 2) share a layer. Rank 0 prints the losses and norms of 50 steps, every digit of them.
"""

import sys

import registered  # noqa: F401
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module

try:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Replicate, Shard
except ImportError:  # where both were before they were public
    from torch.distributed._composable.fsdp import fully_shard
    from torch.distributed._tensor import DTensor, Replicate, Shard

STEPS, WIDTH, HEADS, WORDS, LENGTH = 50, 32, 4, 64, 16


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x):
        # Each rank has some of the heads.
        q, k, v = (layer(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for layer in (self.wq, self.wk, self.wv))
        mask = torch.full((x.shape[1], x.shape[1]), float("-inf")).triu(1)
        weights = (q @ k.transpose(2, 3) / (WIDTH // HEADS) ** 0.5 + mask).softmax(-1)
        return self.wo((weights @ v).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w3 = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.w2 = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm, self.feed_forward = nn.LayerNorm(WIDTH), FeedForward()

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.norm(x))


class Transformer(nn.Module):
    def __init__(self, blocks=3):
        super().__init__()
        self.words, self.norm, self.head = nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))

    def forward(self, text):
        x = self.words(text)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def share_out(model, mesh):
    parallelize_module(model, mesh["tensor"], {
        "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)), "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    })
    whole = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    for block in model.blocks:
        parallelize_module(block, mesh["tensor"], {
            "attention_norm": SequenceParallel(), "attention": whole, "norm": SequenceParallel(), "feed_forward": whole,
            **{f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")},
            "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
            "feed_forward.w1": ColwiseParallel(), "feed_forward.w3": ColwiseParallel(),
            "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
        })
        fully_shard(block, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])


def make(mesh, seed):
    torch.manual_seed(seed)
    model = Transformer()
    share_out(model, mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=3e-3)


def train(model, optimizer, mesh, steps):
    data, group = mesh["data"].get_local_rank(), mesh["data"].get_group()
    for step in steps:
        # Ranks that share layers see the same batch. A word follows from the one before, mostly.
        generator = torch.Generator().manual_seed(1000 * step + data)
        text = torch.randint(WORDS, (4, 1), generator=generator)
        for _ in range(LENGTH):
            text = torch.cat([text, (text[:, -1:] * 5 + torch.randint(2, (4, 1), generator=generator)) % WORDS], 1)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, group=group)
        if dist.get_rank() == 0:
            print(f"step {step}: loss {mean.item() / mesh['data'].size()!r}, norm {norm.item()!r}", flush=True)


def save(model, optimizer, folder):
    weights, state = get_state_dict(model, optimizer)
    checkpoint.save({"model": weights, "optimizer": state}, checkpoint_id=folder)


def load(model, optimizer, folder):
    weights, state = get_state_dict(model, optimizer)
    checkpoint.load({"model": weights, "optimizer": state}, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)


def main():
    backend, folder, tensor = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 2
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group(backend)
    mesh = init_device_mesh("cpu", (dist.get_world_size() // tensor, tensor), mesh_dim_names=("data", "tensor"))
    model, optimizer = make(mesh, seed=5)
    train(model, optimizer, mesh, range(STEPS // 2))
    save(model, optimizer, folder)
    model, optimizer = make(mesh, seed=6)
    load(model, optimizer, folder)
    train(model, optimizer, mesh, range(STEPS // 2, STEPS))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
