trioserve serve --models models --set record=records --port 7001
