"""Tools that speak to a trioserve server: netcat-style client, load generation, reports."""
