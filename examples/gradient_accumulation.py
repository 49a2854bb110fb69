"""Gradient accumulation: each optimizer step uses the gradients of four smaller batches, as with any loss.

python examples/gradient_accumulation.py
"""

import torch
from sklearn.datasets import load_digits

from phiball import RobustLoss

torch.set_num_threads(1)
torch.manual_seed(0)
digits = load_digits()
x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
robust = RobustLoss(0.5, clip=(0, 1))

PARTS = 4
for _ in range(10):
    for batch in torch.randperm(1197).split(64):
        optimizer.zero_grad()
        for b in batch.tensor_split(PARTS):
            loss = robust(model, x[b], y[b])
            (loss * len(b) / len(batch)).backward()  # sums to the mean over the whole batch
        optimizer.step()

error = (model(x[1197:]).argmax(-1) != y[1197:]).float().mean()
print(f"clean error {100 * error:.0f} %")
