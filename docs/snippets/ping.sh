{ printf 'TS\001\062'; head -c 28 /dev/zero; } | nc -N 127.0.0.1 7001 | xxd
