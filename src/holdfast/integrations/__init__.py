"""Other services: models, traces and AWS Lambda; each module says which extra it needs."""
