"""The paper's studies, the benchmarks and the command line.

`phiball.experiments.robustness.robustness_report` measures the robustness of models. The rest is used from
the command line:

- `phiball verify` checks the paper's statements, see `phiball.verification`;
- `phiball run NAME` runs a study: worst-case, supervised, cartpole, pricing, or settings (our own);
- `phiball report MODEL --data FILE` measures the robustness of a model;
- `phiball bench NAME` compares solvers, attacks, samplers and estimators;
- `phiball backends` lists the array backends.

Every command has `--help` with an example.
"""
