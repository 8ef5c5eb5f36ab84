"""Normalising: passes from a module as any frontend dumps it to one flat `main` of StableHLO ops with static shapes."""
