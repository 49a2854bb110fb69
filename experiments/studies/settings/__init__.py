"""Which settings withstand attacks at equal cost: adversarial training on images, beyond the paper."""
