"""A decoder-only language model and its trainer, over one device or many, a file for each part."""
