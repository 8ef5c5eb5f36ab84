"""The command `hlo-surgery`: its arguments, what it reads and writes, and how it speaks."""
