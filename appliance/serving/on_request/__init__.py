"""Profiles that run when a request names their model: who waits for which, when one makes room, and what is said."""
