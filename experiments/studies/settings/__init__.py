"""Beyond the paper: which training settings withstand attacks on images, at equal cost."""
