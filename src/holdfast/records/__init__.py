"""The items of the table: their keys, and one module for each kind of item.

All functions are pure: they decode items, and return writes that the engine carries out.
"""
