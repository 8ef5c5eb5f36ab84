"""The passes, one file each. They live at the top of the repository and are imported as `hlo_surgery.passes`."""

if __name__ != "hlo_surgery.passes":
    raise ImportError("import this package as hlo_surgery.passes")
