xxd -r -p docs/snippets/double.hex | nc -N 127.0.0.1 7001 | trioserve nc --explain -
