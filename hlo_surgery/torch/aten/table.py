"""The table of all operators: whoever imports it from here has it filled."""

from importlib import import_module

from hlo_surgery.torch.aten.operators import TABLE

__all__ = ["TABLE"]

KINDS = (
    "contractions",
    "creation",
    "elementwise",
    "indexing",
    "moves",
    "reductions",
    "resampling",
    "windows",
)

for _kind in KINDS:
    import_module(f"hlo_surgery.torch.aten.{_kind}")
