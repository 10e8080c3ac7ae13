"""Embedders, which convert texts to vectors, and the calibration of their cosines."""
