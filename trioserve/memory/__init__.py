"""Where requests live: the shared arena, the layout of a model's slab in it, and who holds each row."""
