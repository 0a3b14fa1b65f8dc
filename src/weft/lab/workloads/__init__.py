"""workloads: the papers' functions in plain PyTorch, with the sizes and random operands that `weft bench` runs them at."""
