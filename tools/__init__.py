"""What measures, makes and tries: modules to run from the repository's root, `python -m tools...`.

None of it is installed. Rooms: benches, dumps, experiments, the models that they share, and bugs to
plant.
"""
