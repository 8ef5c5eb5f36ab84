"""Time on TPU counted in bundles, from the final schedule that libtpu dumps; nothing runs."""
