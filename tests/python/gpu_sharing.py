"""DistributedOptimizer where the ranks of a host share gradients on their (fake) GPUs, in real jobs. A script, run by daemons/test_gpus.py:

    TENSORLANE_GPU_SUMS=1 tensorlane run -n 4 --ranks-per-host 2 -- python tests/python/gpu_sharing.py

A model that is large enough is trained on the CPU and on GPUs, in float32 and bfloat16, with averages and sums, and must come to the same bits.
"""

import fake_gpu
import tensorlane
import tensorlane.torch as tl
import torch
from torch import nn

FIRST = fake_gpu.load()
CPU = torch.device("cpu")
WIDTH, STEPS = 384, 3  # 147,456 parameters in a layer: 288 KiB in bfloat16


def train(device, dtype, op, overlap, rank):
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)).to(dtype).to(device)
    optimizer = tl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), model.named_parameters(), op=op, overlap=overlap)
    generator = torch.Generator().manual_seed(100 + rank)
    for _ in range(STEPS):
        optimizer.zero_grad()
        x = torch.randn(4, WIDTH, generator=generator).to(dtype).to(device)
        model(x).square().mean().backward()
        optimizer.step()
    groups = tensorlane.status().get("gpus", {}).get("groups", [])
    numbers = torch.cat([p.detach().cpu().flatten() for p in model.parameters()])
    optimizer.close()
    return numbers, groups


def main():
    tensorlane.init()
    rank = tensorlane.rank()
    for dtype in (torch.float32, torch.bfloat16):
        for op in (tl.Average, tl.Sum):
            for overlap in (False, True):
                expected, _ = train(CPU, dtype, op, overlap, rank)
                found, groups = train(FIRST, dtype, op, overlap, rank)
                shared = [group for group in groups if group["shared"]]
                assert shared, groups
                assert torch.equal(found.view(torch.int16), expected.view(torch.int16)), (dtype, op, overlap, (found - expected).abs().max())
    violations = fake_gpu.violations()
    assert not violations, violations
    print(f"rank {rank}: what GPUs share is right", flush=True)
    tensorlane.shutdown()


if __name__ == "__main__":
    main()
