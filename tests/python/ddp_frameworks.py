"""Programs of Accelerate and of Lightning with ddp_comm_hook, beside the same without. A script of two ranks, run by daemons/test_ddp.py:

    ddp_frameworks.py accelerate|lightning
"""

import sys
import warnings

import tensorlane.torch as tl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
EPOCHS = 2


def network():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 3))


def rows():
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(64, 6, generator=generator)
    return TensorDataset(x, torch.randint(0, 3, (64,), generator=generator))


def counted(calls):
    def hook(state, bucket):
        calls.append(bucket.index())
        return tl.ddp_comm_hook(state, bucket)

    return hook


def accelerate(hook):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = network()
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(rows(), batch_size=4))
    tl.init()
    if hook is not None:
        model.register_comm_hook(None, hook)
    for _ in range(EPOCHS):
        for x, y in loader:
            with accelerator.accumulate(model):
                accelerator.backward(nn.functional.cross_entropy(model(x), y))
                optimizer.step()
                optimizer.zero_grad()
    return list(accelerator.unwrap_model(model).parameters())


def lightning(hook):
    import lightning.pytorch as pl
    from lightning.pytorch.plugins.environments import TorchElasticEnvironment
    from lightning.pytorch.strategies import DDPStrategy

    class Hooked(DDPStrategy):
        """DDPStrategy(ddp_comm_hook=...) registers a hook on GPUs only."""

        def configure_ddp(self):
            super().configure_ddp()
            tl.init()
            if hook is not None:
                self.model.register_comm_hook(None, hook)

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = network()

        def training_step(self, batch, _):
            x, y = batch
            return nn.functional.cross_entropy(self.network(x), y)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Module()
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, num_nodes=2, strategy=Hooked(), plugins=[TorchElasticEnvironment()], max_epochs=EPOCHS, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=2,
    )
    trainer.fit(module, DataLoader(rows(), batch_size=4))
    return list(module.parameters())


def main():
    torch.set_num_threads(1)
    train = {"accelerate": accelerate, "lightning": lightning}[sys.argv[1]]
    calls = []
    ours, theirs = train(counted(calls)), train(None)
    assert len(calls) >= EPOCHS * 4, calls
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs))
    assert not torch.equal(ours[0], network()[0].weight), "nothing was trained"
    rank = tl.rank()
    tl.shutdown()
    torch.distributed.destroy_process_group()
    print(f"rank {rank}: the same parameters with the hook and without")


if __name__ == "__main__":
    main()
