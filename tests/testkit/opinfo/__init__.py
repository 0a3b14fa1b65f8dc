"""PyTorch's database of operations and their samples, as a campaign."""
