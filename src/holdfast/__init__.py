"""Holdfast runs agent workflows that can stop at any moment and go on at the exact node."""
