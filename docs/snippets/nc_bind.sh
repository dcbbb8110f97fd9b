trioserve nc --bind double --infer double -t '[[1, 2, 3, 4]]' --output json 127.0.0.1:7001
