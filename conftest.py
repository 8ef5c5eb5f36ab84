"""Of the whole repository: doctests of what needs PyTorch are left out where that is missing."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["hlo_surgery/torch/*"]
