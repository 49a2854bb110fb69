"""Section 6.1: adversarial training on images."""
