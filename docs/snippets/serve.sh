trioserve serve --models models --port 7001
