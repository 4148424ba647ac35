#!/bin/bash
wrong=0
expect() {
  found=$(stat -c %a "$2")
  [ "$found" = "$1" ] || { echo "$2 has $found, not $1"; wrong=1; }
}
cd /app/site || wrong=1
for d in . pages bin "two words" pages/private/deep; do expect 755 "$d"; done
for d in pages/private "two words/private"; do expect 700 "$d"; done
for f in pages/private/key pages/private/run.sh pages/private/deep/more "two words/private/note"; do expect 600 "$f"; done
for f in bin/start.sh bin/stop.sh; do expect 755 "$f"; done
for f in index.html pages/a.html; do expect 644 "$f"; done
expect 604 /app/outside
[ -L link ] || wrong=1
if [ $wrong = 0 ]; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
