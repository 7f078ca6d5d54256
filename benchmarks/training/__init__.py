"""What training costs beside its arithmetic (python -m benchmarks.training), and whether it learns what a plain loop
learns (python -m benchmarks.training.curve)."""
