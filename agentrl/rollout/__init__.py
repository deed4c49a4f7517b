"""Playing episodes: chat rendering, inference engines, environment actors, and the pool that heals them."""
