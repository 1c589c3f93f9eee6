"""Callbacks, with which other systems answer runs, and webhooks, with which runs tell them."""
