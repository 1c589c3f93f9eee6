"""Tests of documents: the service on the table, and its items."""
