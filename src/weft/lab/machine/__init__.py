"""machine: what this machine attains, measured, as a `weft.cost.chip.Chip` (`weft doctor --measure`)."""
