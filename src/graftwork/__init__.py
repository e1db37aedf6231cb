"""graftwork builds patched inference-engine images and proves that the patches are in them."""

__version__ = "0.1.0"
