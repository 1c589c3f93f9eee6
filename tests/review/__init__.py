"""Tests of callbacks and webhooks."""
