"""Readers of files, OCR and transcription."""
