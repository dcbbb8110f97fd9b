trioserve nc --json-frame '{"type": "ADMIN", "json": {"op": "statistics"}}' --output json 127.0.0.1:7001
