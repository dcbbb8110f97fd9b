trioserve serve --models models --config server.toml
