"""The demo: a real model, a server, real questions, and what came of them."""
