"""The compiler: StableHLO in, StableHLO out. It knows nothing of pytrees, users or the command
line.

It lies at the top of the repository and is imported as `hlo_surgery.passes`.
"""

if __name__ != "hlo_surgery.passes":
    raise ImportError("import this package as hlo_surgery.passes")
