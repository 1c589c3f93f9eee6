"""Reading documents: types, segments, OCR and transcription. Needs holdfast[documents]."""
