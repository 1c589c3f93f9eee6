"""Projects, documents, and the workflows that process them: `Documents` of an open store."""
