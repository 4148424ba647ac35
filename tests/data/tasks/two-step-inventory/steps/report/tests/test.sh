#!/bin/bash
[ "$(cat /app/counts.txt)" = "$(printf 'bolt 2\nnut 2\nscrew 11\nwasher 4')" ] && r=1 || r=0
echo "{\"reward\": $r, \"lines\": $(wc -l < /app/counts.txt)}" > /logs/verifier/reward.json
