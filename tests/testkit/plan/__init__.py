"""Scripts that choose and run kernels in Triton's interpreter or compile them for GPUs that are not here."""
