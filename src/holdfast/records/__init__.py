"""The items of the table: every key, and one module for each kind of item.

Pure: a record is made from an item, and a change of it is a write that somebody else carries out.
"""
