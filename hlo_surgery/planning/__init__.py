"""Planning: what strategies would take on a device, and which each gradient and measure gets."""
