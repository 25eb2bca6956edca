"""Measuring the user's own machine into a hardware file: products, attention, memory, collectives."""

from planner.calibrate.command import calibrate

__all__ = ["calibrate"]
