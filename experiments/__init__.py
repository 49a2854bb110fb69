"""The paper's studies, the benchmarks and the command line.

It is used from the command line, and exports no names:

- `phiball verify` checks the paper's statements, see `phiball.verification`;
- `phiball run NAME` runs a study of the paper: worst-case, supervised, cartpole or pricing;
- `phiball bench NAME` compares solvers, attacks, samplers and estimators;
- `phiball backends` lists where arrays can live.

Every command has `--help` with an example.
"""
