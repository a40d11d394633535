"""Optional Triton kernels, for what PyTorch's own do slowly. They know nothing of the rest of the house."""
