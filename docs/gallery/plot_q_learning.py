"""
Robust Q-learning
=================

A walk on eleven states, whose right end ends the episode; each step costs 1. An adversary perturbs the next
state to a neighbor, and pays eta times the entropic divergence. After 20,000 steps, the learned values (dots)
are close to those of value iteration (lines) for the two larger eta, and still too high for the smallest.
"""

import matplotlib.pyplot as plt
import numpy as np

from phiball.qlearning import MDP, Neighbourhood, StatePerturbation, q_learning, value_iteration

states = np.arange(11)
transition = np.zeros((11, 2, 11))
for action, move in enumerate((-1, 1)):
    transition[states, action, np.clip(states + move, 0, 10)] = 1.0
walk = MDP(transition, np.full((11, 2), -1.0), 0.9, terminal=states == 10)
near = np.clip(states[:, None] + np.array([-1, 0, 1]), 0, 10)
neighbours = Neighbourhood(near, np.tile([0.1, 0.8, 0.1], (11, 1)))

figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
for eta in (10.0, 0.5, 0.2):
    adversary = StatePerturbation(neighbours, eta)
    exact = value_iteration(walk, adversary, tol=1e-6).Q.max(axis=1)
    learned = q_learning(walk, adversary, n_steps=20_000, epsilon=0.3, rng=0).Q.max(axis=1)
    (line,) = axis.plot(states, exact, label=f"eta = {eta}")
    axis.plot(states, learned, "o", color=line.get_color(), markersize=4)
axis.set(xlabel="state", ylabel="value of the best action")
axis.legend()
