"""Linear models: their risk without sampling, and its minimum with a certificate."""
