"""Live pages: one stream per page (`hub`, `routes`), fed by what follows the engine (`follower`)."""
