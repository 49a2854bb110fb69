r"""Adversarially robust learning with phi-divergence regularization.

An adversary may move every data point $z$ inside a ball, and pays a phi-divergence for leaving the uniform
distribution $\nu_z$ on that ball. phiball trains models against this adversary and measures them:

$$\min_\theta \mathbb{E}_z[R(\theta; z)], \qquad
R(\theta; z) = \sup_{\gamma \ll \nu_z} \mathbb{E}_\gamma[f_\theta]
- \eta\, \mathbb{E}_{\nu_z}\Big[\phi\Big(\frac{d\gamma}{d\nu_z}\Big)\Big]$$

For a large $\eta$, $R$ is close to the average loss on the ball; for a small $\eta$, to the largest loss. The
inner problem is solved exactly, and the solution has a certificate, the duality gap:

>>> import numpy as np
>>> import phiball
>>> float(phiball.worst_case(np.array([0.0, 1.0]), eta=0.5, divergence="chi2").value)
0.75

The main names:

- solve an inner problem for given losses: `phiball.worst_case`;
- train a model: `phiball.RobustLoss`, `phiball.RegularizedLoss`;
- estimate the risk of a model: `phiball.robust_risk`, `phiball.adversarial_risk`;
- see the worst case: `phiball.worst_case_density`, `phiball.worst_case_sample`;
- measure the robustness of models, as a page: `phiball.robustness_report`;
- attack a model: `phiball.apgd`, `phiball.pgm`, `phiball.fgm`;
- certify a model: `phiball.certify.certified_margins`;
- draw random numbers, select a backend: `phiball.rng`, `phiball.set_backend`;
- check your own solver: `phiball.verification.verify_solver`.

All other names are in namespaces, the folders of `phiball.refimpl`: `phiball.inner`,
`phiball.distributions`, `phiball.sampling`, `phiball.risk`, `phiball.training`, `phiball.optimize`,
`phiball.theory`, `phiball.qlearning`, `phiball.causal`, `phiball.linear`, `phiball.certify` and
`phiball.sklearn`. Everything is loaded on first use.
The packages:

- `phiball.refimpl`: the mathematics, one file per concept, in the paper's symbols;
- `phiball.backends`: arrays (NumPy, torch, JAX, CuPy), random numbers, compiled kernels;
- `phiball.verification`: the paper's statements as executable claims, and their report;
- `phiball.experiments`: the paper's studies, the benchmarks and the command line.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for type checkers and editors
    from phiball import backends as backends
    from phiball import experiments as experiments
    from phiball import refimpl as refimpl
    from phiball import verification as verification
    from phiball.backends import backend as backend
    from phiball.backends import rng as rng
    from phiball.backends import set_backend as set_backend
    from phiball.experiments.robustness import AttackSettings as AttackSettings
    from phiball.experiments.robustness import RobustnessReport as RobustnessReport
    from phiball.experiments.robustness import robustness_report as robustness_report
    from phiball.refimpl import *  # noqa: F403
    from phiball.refimpl import causal as causal
    from phiball.refimpl import certify as certify
    from phiball.refimpl import distributions as distributions
    from phiball.refimpl import inner as inner
    from phiball.refimpl import linear as linear
    from phiball.refimpl import optimize as optimize
    from phiball.refimpl import qlearning as qlearning
    from phiball.refimpl import risk as risk
    from phiball.refimpl import sampling as sampling
    from phiball.refimpl import sklearn as sklearn
    from phiball.refimpl import theory as theory
    from phiball.refimpl import training as training

    __version__: str

_PACKAGES = ("backends", "experiments", "refimpl", "verification")
_NAMESPACES = (
    "causal",
    "certify",
    "distributions",
    "inner",
    "linear",
    "optimize",
    "qlearning",
    "risk",
    "sampling",
    "sklearn",
    "theory",
    "training",
)
_ELSEWHERE = {
    "AttackSettings": "phiball.experiments.robustness",
    "RobustnessReport": "phiball.experiments.robustness",
    "backend": "phiball.backends",
    "rng": "phiball.backends",
    "robustness_report": "phiball.experiments.robustness",
    "set_backend": "phiball.backends",
}


class _Namespaces:  # without the base classes of importlib.abc, which take long to import
    """Import phiball.linear and the other namespaces, and their modules, from phiball.refimpl."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        package, _, rest = name.partition(".")
        if package != "phiball" or rest.partition(".")[0] not in _NAMESPACES:
            return None
        module = import_module(f"phiball.refimpl.{rest}")
        return ModuleSpec(name, self, loader_state=(module, module.__spec__))  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module: ModuleType = spec.loader_state[0]
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state[1]  # restore it: the import system replaced it


sys.meta_path.insert(0, _Namespaces())

if not TYPE_CHECKING:  # all names are loaded on first use, which keeps the import fast

    def __getattr__(name):
        if name == "__version__":
            value = import_module("importlib.metadata").version("phiball")
        elif name == "__all__":  # for "from phiball import *"
            value = [*_ELSEWHERE, *import_module("phiball.refimpl").__all__]
        elif name.startswith("__"):  # load nothing for such names, which inspect, copy and others look up
            raise AttributeError(f"module 'phiball' has no attribute {name!r}")
        elif name in _PACKAGES or name in _NAMESPACES:
            value = import_module(f"phiball.{name}")
        elif name in _ELSEWHERE:
            value = getattr(import_module(_ELSEWHERE[name]), name)
        elif name in import_module("phiball.refimpl").__all__:
            value = getattr(import_module("phiball.refimpl"), name)
        else:
            known = {public.lower(): public for public in __dir__()}
            close = import_module("difflib").get_close_matches(name.lower(), known, n=1)
            hint = f"; did you mean {known[close[0]]!r}?" if close else ""
            # With obj=None the interpreter does not add its own suggestion.
            raise AttributeError(f"module 'phiball' has no attribute {name!r}{hint}", name=name, obj=None)
        globals()[name] = value
        return value

    def __dir__():
        public = import_module("phiball.refimpl").__all__
        return sorted({*_PACKAGES, *_NAMESPACES, *_ELSEWHERE, *public, "__doc__", "__name__", "__version__"})
