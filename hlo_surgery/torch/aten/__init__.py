"""Aten: PyTorch's core operators as JAX functions, by name of overload; what is missing is refused."""
