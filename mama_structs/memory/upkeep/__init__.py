"""Erasure, export, copies and services of a namespace."""
