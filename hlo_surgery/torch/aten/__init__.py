"""Aten: PyTorch's core operators as JAX functions, by overload; what is missing is refused."""
