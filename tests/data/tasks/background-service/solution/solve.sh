#!/bin/bash
cat > /app/service.py <<'P'
import json
from http.server import BaseHTTPRequestHandler, HTTPServer

STOCK = json.load(open("/app/stock.json"))


class Handler(BaseHTTPRequestHandler):
    def answer(self, status, text=""):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self):
        name = self.path.rpartition("/")[2]
        self.answer(200, str(STOCK[name])) if name in STOCK else self.answer(404)

    def do_POST(self):
        name = self.path.rpartition("/")[2]
        if name not in STOCK:
            return self.answer(404)
        if not STOCK[name]:
            return self.answer(409)
        STOCK[name] -= 1
        self.answer(200, str(STOCK[name]))


HTTPServer(("127.0.0.1", 8471), Handler).serve_forever()
P
setsid nohup python3 /app/service.py >/dev/null 2>&1 </dev/null &
for _ in $(seq 100); do
  (exec 3<>/dev/tcp/127.0.0.1/8471) 2>/dev/null && exit 0
  sleep 0.1
done
exit 1
