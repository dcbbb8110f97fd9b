trioserve models reload double --url tcp://127.0.0.1:7001
trioserve models unload affine --url tcp://127.0.0.1:7001
trioserve models load affine:1 --url tcp://127.0.0.1:7001
trioserve models reload --url tcp://127.0.0.1:7001
