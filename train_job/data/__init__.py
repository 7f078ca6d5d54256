"""Where training data comes from, and how a batch follows from (seed, step)."""
