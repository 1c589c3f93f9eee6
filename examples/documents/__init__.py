"""The document pipeline: files are read, analysed page by page, and summed up."""
