"""`phiball bench attacks`: errors found by attacks, compared with other libraries.

The part `digits` compares simple attacks, and torchattacks at equal settings, on a small convolutional
network for scikit-learn's digits (8 x 8 pixels in [0, 1]), trained once per seed. The part `autoattack`
compares `apgd` with APGD of pyautoattack at equal numbers of steps, and the part `tools` compares the
robustness report with attacks of other libraries, both on networks for 28 x 28 images. Every attack perturbs
the same test images within the same ball and the box [0, 1]. `phiball bench training` measures the cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from math import inf
from statistics import fmean
from typing import Any, TypeAlias

import phiball
from phiball.backends import Array, backend
from phiball.backends.progress import Update, silent
from phiball.experiments.benchmarks.harness import (
    NOT_INSTALLED,
    BenchmarkReport,
    BenchmarkTable,
    Clock,
    Row,
    optional_module,
    part_of,
)
from phiball.experiments.datasets.images import load
from phiball.experiments.framework.requirements import require
from phiball.experiments.training.image_networks import cnn, torch_seed
from phiball.experiments.training.loop import Schedule, train_network
from phiball.experiments.training.small_classifiers import Classifier, train_layers
from phiball.experiments.training.training_methods import random_start_fgm
from phiball.refimpl import Ball, apgd, fgm, ifgm, pgm, pointwise_loss, white_noise
from phiball.refimpl.distributions.norms import norm_name

PARTS = ("digits", "autoattack", "tools")
IMAGE_SETS = ("mnist", "fashion-mnist", "kmnist")
BOX = (0.0, 1.0)
DIGITS_BALLS = [Ball(2, r, BOX) for r in (0.25, 0.5, 0.75, 1.0)]
DIGITS_BALLS += [Ball(inf, r, BOX) for r in (0.05, 0.1, 0.15, 0.2)]
AUTOATTACK_BALLS = [Ball(1, 8.0, BOX), Ball(2, 1.5, BOX), Ball(inf, 0.15, BOX)]
TOOLS_BALLS = [Ball(2, 0.5, BOX), Ball(2, 1.5, BOX), Ball(inf, 0.05, BOX), Ball(inf, 0.15, BOX)]
TABLE_BALLS = [Ball(2, 0.5), Ball(inf, 0.1)]
STEPS, TEST_IMAGES = 15, 300
LONG_STEPS, QUERIES = 100, 1000  # of the parts autoattack and tools
TRAIN_IMAGES = 6000
TARGETS = 9  # classes that APGD-T targets
SAME_RUNS = {"apgd, 2 runs": "apgd-ce + apgd-dlr", "apgd, 10 runs": "apgd-ce + apgd-t"}
ALLOWED = 0.5  # percentage points by which our errors may be lower
PIP_NAMES = {"art": "adversarial-robustness-toolbox"}
INSIDE = "inside: all points lie in their balls and in the box"
Attack: TypeAlias = Callable[[Ball, int], Any]  # from a ball and a seed to perturbed points, or the error
Peer: TypeAlias = Callable[[Any, Classifier, Ball, int], Array]  # the same, of a library and a network


def train_victim(seed: int, *, epochs: int = 20, test_images: int = TEST_IMAGES) -> Classifier:
    """Train a small network on all digits except the last `test_images`."""
    torch = import_module("torch")
    digits = load("digits")
    x, y = (torch.cat(parts) for parts in zip(digits.tensors("train"), digits.tensors("test"), strict=True))

    def layers(nn: Any) -> list[Any]:
        return [
            nn.Conv2d(1, 16, 3, padding=1), nn.ELU(), nn.Conv2d(16, 32, 3, stride=2), nn.ELU(), nn.Flatten(),
            nn.Linear(32 * 9, 10),
        ]  # fmt: skip

    model = train_layers(layers, x[:-test_images], y[:-test_images], epochs=epochs, seed=seed)
    return Classifier("digits", model.eval(), x[-test_images:], y[-test_images:])


def train_image_victim(name: str, *, test_images: int) -> Classifier:
    """Train the network of Section 6.1, with 16 filters, by FGM in a linf ball of radius 0.1."""
    data, model = load(name), cnn(16)
    objective = random_start_fgm("", Ball(inf, 0.1, BOX)).objective
    images = data.tensors("train", 0, TRAIN_IMAGES)
    train_network(model, objective, images, Schedule(3, batch=64, rate=3e-3), phiball.rng(0))
    return Classifier(name, model.eval(), *data.tensors("test", 0, test_images))


def train_table_victim() -> Classifier:
    """Train a small network on the data set breast cancer: standardized features, two classes."""
    torch, datasets = import_module("torch"), import_module("sklearn.datasets")
    x, y = (torch.tensor(array) for array in datasets.load_breast_cancer(return_X_y=True))
    x = ((x - x.mean(0)) / x.std(0)).float()

    def layers(nn: Any) -> list[Any]:
        return [nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 2)]

    return Classifier(
        "breast cancer", train_layers(layers, x[200:], y[200:], epochs=10, seed=0), x[:200], y[:200]
    )


# --- Attacks ----------------------------------------------------------------------------------------------


def digits_attacks(victim: Classifier) -> dict[str, Attack]:
    """The attacks of the part `digits`; "torchattacks" is comparable to "PGM, last iterate"."""
    loss, x = victim.loss, victim.x
    return {
        "white noise": lambda ball, seed: white_noise(x, ball, rng=seed),
        "FGM": lambda ball, seed: fgm(loss, x, ball),
        "FGM, random start": lambda ball, seed: fgm(loss, x, ball, rng=seed),
        "IFGM": lambda ball, seed: ifgm(loss, x, ball, steps=STEPS),
        "PGM, last iterate": lambda ball, seed: pgm(loss, x, ball, steps=STEPS, rng=seed, keep_best=False),
        "PGM, best iterate": lambda ball, seed: pgm(loss, x, ball, steps=STEPS, rng=seed),
        "PGM, best of 4 runs": lambda ball, seed: pgm(loss, x, ball, steps=STEPS, rng=seed, restarts=4),
        **_installed(victim, {"torchattacks": ("torchattacks", partial(_torchattacks_pgd, STEPS))}),
    }


def autoattack_attacks(victim: Classifier) -> dict[str, Attack]:
    """`apgd` and pyautoattack, with two and with ten runs in total."""
    loss, x = pointwise_loss(victim.model, victim.y), victim.x

    def ours(restarts: int, ball: Ball, seed: int) -> Array:  # the first restart takes two runs
        return apgd(loss, x, ball, steps=LONG_STEPS, restarts=restarts, rng=seed)

    two, ten = SAME_RUNS
    peers = {name: ("pyautoattack", partial(_pyautoattack, name.split(" + "))) for name in SAME_RUNS.values()}
    return {two: partial(ours, 1), ten: partial(ours, TARGETS), **_installed(victim, peers)}


def tools_attacks(victim: Classifier) -> dict[str, Attack]:
    """The report with its default settings, and attacks of other libraries."""
    return {"robustness_report": partial(_report_error, victim), **_installed(victim, TOOLS)}


def _installed(victim: Classifier, peers: Mapping[str, tuple[str, Peer]]) -> dict[str, Attack]:
    """The attacks of the libraries that are installed, from (library, attack) by name."""
    modules = {name: optional_module(package) for name, (package, _) in peers.items()}
    return {name: partial(peers[name][1], module, victim) for name, module in modules.items() if module}


def _report_error(victim: Classifier, ball: Ball, seed: int) -> float:
    """The error in percent that the report finds, with its default attacks."""
    report = phiball.robustness_report(
        victim.model, (victim.x, victim.y), norm=ball.norm, radii=[ball.radius], clip=ball.clip,
        settings=phiball.AttackSettings(etas=()), rng=seed,
    )  # fmt: skip
    [level] = report.summary["models"]["model"]["norms"][norm_name(ball.norm)]
    return 100 * float(level["measures"]["worst"]["error"])


def _torchattacks_pgd(steps: int, torchattacks: Any, victim: Classifier, ball: Ball, seed: int) -> Array:
    """Run PGD or PGDL2 with the settings of `pgm`: radius, step size, number of steps, random start."""
    attack = torchattacks.PGDL2 if ball.norm == 2 else torchattacks.PGD
    with torch_seed(seed):  # torchattacks draws from torch's global generator
        run = attack(victim.model, eps=ball.radius, alpha=2.5 * ball.radius / steps, steps=steps)
        return run(victim.x, victim.y)


def _foolbox_pgd(foolbox: Any, victim: Classifier, ball: Ball, seed: int) -> Array:
    attack = foolbox.attacks.L2PGD if ball.norm == 2 else foolbox.attacks.LinfPGD
    model = foolbox.PyTorchModel(victim.model, bounds=BOX, device=victim.x.device)
    with torch_seed(seed):
        run = attack(rel_stepsize=2.5 / LONG_STEPS, steps=LONG_STEPS)
        return run(model, victim.x, victim.y, epsilons=ball.radius)[1]


def _art_pgd(art: Any, victim: Classifier, ball: Ball, seed: int) -> Array:
    """Run PGD from the data; a random start would need a seed of NumPy's global generator."""
    torch, attacks = import_module("torch"), import_module("art.attacks.evasion")
    shape, loss = tuple(victim.x.shape[1:]), torch.nn.CrossEntropyLoss()
    wrapper = import_module("art.estimators.classification").PyTorchClassifier
    model = wrapper(victim.model, loss, shape, nb_classes=10, clip_values=BOX, device_type="cpu")
    run = attacks.ProjectedGradientDescent(
        model, norm=ball.norm, eps=ball.radius, eps_step=2.5 * ball.radius / LONG_STEPS, max_iter=LONG_STEPS,
        batch_size=len(victim.x), verbose=False,
    )  # fmt: skip
    return torch.tensor(run.generate(victim.x.numpy(), victim.y.numpy()))


def _pyautoattack(attacks: list[str], pyautoattack: Any, victim: Classifier, ball: Ball, seed: int) -> Array:
    """Run attacks of AutoAttack in turn, with its 100 steps, on the points still classified correctly."""
    norm = norm_name(ball.norm).capitalize()
    with torch_seed(seed):  # restores the global generator, which pyautoattack seeds
        run = pyautoattack.AutoAttack(
            victim.model, attacks=attacks, version="custom", norm=norm, eps=ball.radius, seed=seed
        )
        for attack in (run.apgd, run.apgd_targeted):
            attack.n_restarts = 1
            attack.use_largereps = ball.norm == 1  # large radii first, as in its standard version
        run.apgd_targeted.n_target_classes, run.square.n_queries = TARGETS, QUERIES
        return run.run_standard_evaluation(victim.x, victim.y, batch_size=len(victim.x))[0]


TOOLS: dict[str, tuple[str, Peer]] = {
    "foolbox PGD": ("foolbox", _foolbox_pgd),
    "torchattacks PGD": ("torchattacks", partial(_torchattacks_pgd, LONG_STEPS)),
    "ART PGD": ("art", _art_pgd),
    "pyautoattack APGD + Square": ("pyautoattack", partial(_pyautoattack, ["apgd-ce", "square"])),
}


# --- Errors -----------------------------------------------------------------------------------------------


def _outside_ball_or_box(ball: Ball, x: Array, perturbed: Array) -> float:
    """The largest excess of a point over its ball (in radii) or over the box; at most 0 if inside."""
    offsets = (perturbed - x).flatten(1).double()
    excess = float(offsets.norm(p=ball.norm, dim=1).max()) / ball.radius - 1
    return excess if ball.clip is None else max(excess, float(-perturbed.min()), float(perturbed.max()) - 1)


def error_rows(
    victims: Sequence[Callable[[], Classifier]],
    balls: Sequence[Ball],
    attacks_on: Callable[[Classifier], dict[str, Attack]],
    update: Update = silent,
) -> list[Row]:
    """The error in percent of every network under every attack in every ball.

    The error is the name of the exception if an attack raises an IndexError, as pyautoattack does for two
    classes.
    """
    rows = []
    for seed, train in enumerate(victims):
        update(seed / len(victims), f"training network {seed + 1} of {len(victims)}")
        victim = train()
        clean = 100 * victim.errors(victim.x) / len(victim.x)
        for number, ball in enumerate(balls, start=1):
            name = f"{norm_name(ball.norm)} {ball.radius:g}"
            done = (seed + number / (1 + len(balls))) / len(victims)
            update(done, f"attacking network {seed + 1}, {name}")
            for attack, run in attacks_on(victim).items():
                outside = None
                try:
                    error = run(ball, seed)
                except IndexError:
                    error = "IndexError"
                if not isinstance(error, (float, str)):
                    outside = _outside_ball_or_box(ball, victim.x, error)
                    error = 100 * victim.errors(error) / len(victim.x)
                where = {"network": victim.name, "attack": attack, "ball": name}
                rows.append({**where, "clean": clean, "error": error, "outside": outside})
    return rows


def attack_rows(rows: list[Row]) -> list[Row]:
    """A row per network and attack, with the mean error in each ball over networks of the same name."""
    means = []
    for network, attack in dict.fromkeys((row["network"], row["attack"]) for row in rows):
        group = [row for row in rows if (row["network"], row["attack"]) == (network, attack)]
        outside = [row["outside"] for row in group if row["outside"] is not None]
        inside = "" if not outside else "yes" if max(outside) <= 1e-5 else "NO"
        errors: dict[str, list[Any]] = {row["ball"]: [] for row in group}
        for row in group:
            errors[row["ball"]].append(row["error"])
        columns = {ball: "IndexError" if "IndexError" in e else fmean(e) for ball, e in errors.items()}
        where = {"network": network, "attack": attack, "inside": inside}
        means.append({**where, "clean": fmean(row["clean"] for row in group), **columns})
    return means


def compare_errors(rows: list[Row], pairs: Sequence[tuple[str, str]]) -> list[str]:
    """A line per pair (ours, theirs): the range of the differences of the errors found."""
    found = {(row["attack"], row["network"], row["ball"]): row["error"] for row in rows}
    lines = []
    for ours, theirs in pairs:
        gaps = [found[ours, *rest] - error for (attack, *rest), error in found.items() if attack == theirs]
        if gaps:
            low, high = (round(gap, 6) + 0.0 for gap in (min(gaps), max(gaps)))  # no -0.0
            verdict = "" if low >= -ALLOWED else "BELOW: "
            lines.append(f"{verdict}{ours}, minus {theirs}: {low:+.1f} to {high:+.1f} points")
    return lines


def bench_attacks(
    *, clock: Clock, quick: bool = False, part: str = "digits", update: Update = silent
) -> BenchmarkReport:
    """Measure the errors under the attacks of one `part`; `clock` is not used."""
    require("torch", user="bench attacks", extra="bench")
    if part not in PARTS:
        raise ValueError(f"part is {part!r}; expected one of {', '.join(PARTS)}")
    names, count = (IMAGE_SETS, TEST_IMAGES) if part == "autoattack" else (("fashion-mnist",), 1000)
    victims = [partial(train_image_victim, name, test_images=count) for name in names]
    if quick:
        victims = [partial(train_victim, 0, epochs=3, test_images=50)]
    lines: list[str] = []
    with backend("torch"):
        if part == "digits":
            seeds, packages = range(2 if quick else 6), ["torchattacks"]
            balls = DIGITS_BALLS[::2] if quick else DIGITS_BALLS
            rows = error_rows([partial(train_victim, seed) for seed in seeds], balls, digits_attacks, update)
            tables = {f"attacks with {STEPS} steps, mean of {len(seeds)} networks": rows}
        elif part == "autoattack":
            packages, runs = ["pyautoattack"], f"Auto-PGD with {LONG_STEPS} steps per run"
            rows = error_rows(victims, AUTOATTACK_BALLS, autoattack_attacks, part_of(update, 0.0, 0.95))
            data = error_rows([train_table_victim], TABLE_BALLS, autoattack_attacks)
            tables = {f"{runs}, images": rows, f"{runs}, a table with two classes": data}
            lines = compare_errors(rows, list(SAME_RUNS.items()))
        else:
            packages = [package for package, _ in TOOLS.values()]
            rows = error_rows(victims, TOOLS_BALLS, tools_attacks, update)
            tables = {f"the attacks of a report, and {LONG_STEPS} steps (Square: {QUERIES} queries)": rows}
            lines = compare_errors(rows, [("robustness_report", name) for name in TOOLS])
    lines += [NOT_INSTALLED.format(PIP_NAMES.get(p, p)) for p in packages if not optional_module(p)]
    made = [BenchmarkTable(f"Error in percent under {t}", attack_rows(r), INSIDE) for t, r in tables.items()]
    return BenchmarkReport(made, lines)
