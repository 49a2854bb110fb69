"""torch.compile: compile the model, and pass the compiled model to the loss.

RobustLoss evaluates one perturbed point per data point, so that the number of points varies only with the
batch size. This script compiles with dynamic=True, because the last batch is smaller. With the estimator
RTMLMC, the number of points is random, so that dynamic=True is necessary even for batches of equal size.

python examples/torch_compile.py
"""

import torch
from sklearn.datasets import load_digits

from phiball import RobustLoss

torch.set_num_threads(1)
torch.manual_seed(0)
digits = load_digits()
x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
plain = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
model = torch.compile(plain, backend="aot_eager", dynamic=True)  # the default backend needs a C++ compiler
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
robust = RobustLoss(0.5, clip=(0, 1))

for _ in range(10):
    for b in torch.randperm(1197).split(64):
        loss = robust(model, x[b], y[b])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

error = (plain(x[1197:]).argmax(-1) != y[1197:]).float().mean()
print(f"clean error {100 * error:.0f} %")
