"""Tests of the alert rules that Holdfast ships."""
