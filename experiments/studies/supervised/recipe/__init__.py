"""Fast adversarial training under a good recipe, beyond the paper: baselines of two evaluations per image."""
