trioserve nc --infer double -t '[[1, 2, 3, 4]]' --show-sent 127.0.0.1:7001
