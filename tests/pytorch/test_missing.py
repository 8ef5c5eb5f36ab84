"""Without PyTorch, everything else works, and what needs it says so."""

from importlib.util import find_spec

import pytest

import hlo_surgery as hs


@pytest.mark.skipif(find_spec("torch") is not None, reason="PyTorch is installed")
def test_what_needs_pytorch_says_so():
    with pytest.raises(ModuleNotFoundError, match=r"pip install '\.\[torch\]'"):
        hs.torch.grad  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'tensorflow'"):
        hs.tensorflow  # noqa: B018
