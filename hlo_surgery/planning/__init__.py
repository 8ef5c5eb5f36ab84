"""Planning: what each strategy would take on a device, and which one is chosen for each gradient and measure."""
