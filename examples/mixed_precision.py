"""Mixed precision: call the loss inside torch.autocast. Data and weights in bfloat16 work too.

python examples/mixed_precision.py
"""

import torch
from sklearn.datasets import load_digits

from phiball import RobustLoss

torch.set_num_threads(1)
digits = load_digits()
x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)


def train(autocast, dtype):
    """Train a network, and return its error on 600 test digits, in %."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)).to(dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    robust = RobustLoss(0.5, clip=(0, 1))
    for _ in range(10):
        for b in torch.randperm(1197).split(64):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                loss = robust(model, x[b].to(dtype), y[b])
            optimizer.zero_grad()
            loss.backward()  # with float16 on a GPU: scaler.scale(loss).backward()
            optimizer.step()
    wrong = model(x[1197:].to(dtype)).argmax(-1) != y[1197:]
    return 100 * float(wrong.float().mean())


print(f"float32  error {train(False, torch.float32):.0f} %")
print(f"autocast error {train(True, torch.float32):.0f} %")
print(f"bfloat16 error {train(False, torch.bfloat16):.0f} %, with data and weights in bfloat16")
