"""What claims are tried on: searched problems, laws, losses, decision processes, printed algorithms."""
