trioserve check models
