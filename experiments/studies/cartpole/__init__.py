"""Section 6.2: robust Q-learning on the cart and pole."""
