"""torch.compile: compile the model, and call the loss on it as ever.

One tilted point per data point keeps the number of points that of the batch, so that one compilation per
size of the batch is enough. Other estimators vary it: compile with dynamic=True for them.

python examples/compiled.py
"""

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

from phiball import RobustLoss

torch.set_num_threads(1)
torch.manual_seed(0)
digits = load_digits()
x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
plain = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
model = torch.compile(plain, backend="aot_eager", dynamic=True)  # the default backend needs a C++ compiler
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
robust = RobustLoss(0.5)

for _ in range(10):
    for b in torch.randperm(1197).split(64):
        yb = y[b]
        loss = robust(lambda z, i: cross_entropy(model(z), yb[i], reduction="none"), x[b])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

error = (plain(x[1197:]).argmax(-1) != y[1197:]).float().mean()
print(f"clean error {100 * error:.0f} %")
