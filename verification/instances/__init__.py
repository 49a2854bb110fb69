"""What claims are tried on: searched problems, distributions, losses, decision processes, printed algorithms."""
