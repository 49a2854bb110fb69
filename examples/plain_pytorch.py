"""A plain PyTorch loop with a DataLoader: one line makes the training robust.

python examples/plain_pytorch.py
"""

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from phiball import Ball, RobustLoss, pgm, pointwise_loss

torch.set_num_threads(1)
digits = load_digits()
x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
loader = DataLoader(TensorDataset(x[:1197], y[:1197]), batch_size=64, shuffle=True)


def train(robust):
    """Train a network with a `RobustLoss`, or with the standard loss if `robust` is None."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(20):
        for xb, yb in loader:
            # The only line that differs from standard training:
            loss = cross_entropy(model(xb), yb) if robust is None else robust(model, xb, yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


def errors(model):
    """Return the errors on 600 held-out digits, clean and under attacks of l2 radius 0.5, in %."""
    attacked = pgm(pointwise_loss(model, y[1197:]), x[1197:], Ball(2, 0.5, clip=(0, 1)), rng=0)
    return [100 * float((model(z).argmax(-1) != y[1197:]).float().mean()) for z in (x[1197:], attacked)]


robust = RobustLoss(0.5, clip=(0, 1), rng=0)
for name, objective in ("plain", None), ("robust", robust):
    clean, attacked = errors(train(objective))
    print(f"{name:6} error {clean:2.0f} %, under attack {attacked:2.0f} %")
print(robust.explain())
