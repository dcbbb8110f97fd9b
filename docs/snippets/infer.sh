trioserve infer double --json '[1, 2, 3, 4]' --explain --url tcp://127.0.0.1:7001
