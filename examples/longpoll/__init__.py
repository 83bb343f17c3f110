"""Long polls in FastAPI, as small as they can be."""
