"""Python programs in processes of their own, which need not import PyTorch and weft anew."""
