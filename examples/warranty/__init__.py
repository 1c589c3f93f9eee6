"""The warranty application: documents are read, judged, reviewed by a person, and answered."""
