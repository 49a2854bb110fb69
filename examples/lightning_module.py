"""Lightning: one line in `training_step`, and a callback that logs the error under attack.

python examples/lightning_module.py
"""

import logging
import tempfile
import warnings

import lightning
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from phiball import RobustLoss, robustness_report
from phiball.experiments.robustness import AttackSettings

torch.set_num_threads(1)
digits = load_digits()
x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)


class Network(lightning.LightningModule):
    """A network trained against attacks of l2 radius 0.5."""

    def __init__(self):
        super().__init__()
        self.robust = RobustLoss(0.5, clip=(0, 1))
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))

    def forward(self, z):
        """Return the scores of the classes."""
        return self.layers(z)

    def training_step(self, batch, _):
        """Return the robust loss: the only line that differs from standard training."""
        return self.robust(self, *batch)

    def configure_optimizers(self):
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=3e-3)

    def on_save_checkpoint(self, checkpoint):
        """Save the random state of the perturbations."""
        checkpoint["robust"] = self.robust.state_dict()

    def on_load_checkpoint(self, checkpoint):
        """Restore the random state of the perturbations."""
        self.robust.load_state_dict(checkpoint["robust"])


class LogRobustness(lightning.Callback):
    """Log the error under attack after every tenth epoch."""

    def on_train_epoch_end(self, trainer, module):
        """Measure the model on held-out digits, and log the error at the largest radius."""
        if trainer.current_epoch % 10 == 9:
            held_out = x[1197:1397], y[1197:1397]
            settings = AttackSettings(attacks=("pgm",), etas=(), restarts=1)
            report = robustness_report(module, held_out, norm="l2", radii=[0, 0.5], settings=settings, rng=0)
            measures = report.summary["models"]["model"]["norms"]["l2"][-1]["measures"]
            module.log("error_under_attack", measures["worst"]["error"])
            print(f"epoch {trainer.current_epoch + 1}: {report!r}")


warnings.filterwarnings("ignore")  # Lightning's advice on data loaders and logging
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
lightning.seed_everything(0, verbose=False)
with tempfile.TemporaryDirectory() as folder:
    trainer = lightning.Trainer(
        max_epochs=20,
        accelerator="cpu",
        callbacks=[LogRobustness()],
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Network()
    trainer.fit(model, DataLoader(TensorDataset(x[:1197], y[:1197]), batch_size=64, shuffle=True))
    print(f"logged: error under attack {100 * trainer.callback_metrics['error_under_attack']:.0f} %")
    trainer.save_checkpoint(f"{folder}/model.ckpt")
    again = Network.load_from_checkpoint(f"{folder}/model.ckpt")
    print(f"from the checkpoint: {again.robust}")
