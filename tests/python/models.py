"""Small models without dropout or batch normalisation, and the loop that trains them."""

import torch
import torch.nn.functional as F
from torch import nn

STEPS = 20


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.second = nn.Linear(16, 16)
        self.last = nn.Linear(16, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.second(torch.relu(self.first(x)))))


class Tied(nn.Module):
    """One weight in two modules."""

    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(6, 6, bias=False)
        self.middle = nn.Linear(6, 6)
        self.decode = nn.Linear(6, 6, bias=False)
        self.decode.weight = self.encode.weight

    def forward(self, x):
        return self.decode(torch.relu(self.middle(self.encode(x))))


class Attention(nn.Module):
    """self_attn.out_proj owns a weight and is never called."""

    def __init__(self):
        super().__init__()
        self.into = nn.Linear(6, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.layer(self.into(x).unsqueeze(1)).squeeze(1))


class Frozen(Plain):
    def __init__(self):
        super().__init__()
        self.second.requires_grad_(False)


OPTIMIZERS = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.05, weight_decay=1e-3),
    "momentum": lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.01, amsgrad=True),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=0.01, momentum=0.5, centered=True),
    "adagrad": lambda groups: torch.optim.Adagrad(groups, lr=0.05, lr_decay=0.01),
}

SCENARIOS = {
    "plain": Plain,
    "scheduler": Plain,
    "clipping": Plain,
    "accumulation": Plain,
    "tied": Tied,
    "frozen": Frozen,
    "attention": Attention,
}


def build(scenario, seed=7):
    torch.manual_seed(seed)
    return SCENARIOS[scenario]()


def groups_of(model):
    """Two groups with hyperparameters of their own."""
    parameters = list(model.parameters())
    return [{"params": parameters[:1], "lr": 0.02}, {"params": parameters[1:]}]


def data(seed, rank=0, batch=8):
    generator = torch.Generator("cpu").manual_seed(1000 * rank + seed)
    x, y = torch.randn(batch, 6, generator=generator, device="cpu"), torch.randint(0, 3, (batch,), generator=generator, device="cpu")
    return x.to(torch.get_default_device()), y.to(torch.get_default_device())


def train(model, optimizer, scenario, steps=STEPS, rank=0):
    """The loop as a user writes it. A plain torch optimizer does for a baseline."""
    passes = 3 if scenario == "accumulation" else 1
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps) if scenario == "scheduler" else None
    for step in range(steps):
        optimizer.zero_grad()
        for micro in range(passes):
            x, y = data(step * passes + micro, rank)
            F.cross_entropy(model(x), y).backward()
        if scenario == "clipping":
            if hasattr(optimizer, "synchronize"):
                optimizer.synchronize()
            nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
        if scheduler:
            scheduler.step()
    return model


def same_bits(left, right):
    """Two state_dicts, bit for bit, NaNs included."""
    assert left.keys() == right.keys()
    for key, value in left.items():
        if isinstance(value, dict):
            same_bits(value, right[key])
        elif isinstance(value, torch.Tensor):
            assert value.contiguous().view(-1).view(torch.uint8).equal(right[key].contiguous().view(-1).view(torch.uint8)), key
        else:
            assert value == right[key], key
