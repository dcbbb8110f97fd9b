"""trioserve: a latency-first model server on Trio."""
