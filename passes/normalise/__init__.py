"""Normalising: from a module as any frontend dumps it to one flat, static `main` of StableHLO.

normalize      the stages, in order
out_of_scope   what is refused here; sharding constraints, set aside
calls          what is declared to take examples one by one
devices        a program for each device as one for all
collectives    ops that exchange values between devices
varying        along which mesh axes values differ
"""
