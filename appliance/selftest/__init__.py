"""The bundled model, its known answers, and how it was trained."""
