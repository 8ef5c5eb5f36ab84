"""GPUs: programs compiled for one that is not here, and all tables where there is one."""
