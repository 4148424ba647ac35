#!/bin/bash
expected=$(printf 'jonas,42.75\nmira,24.51\nines,24.49\ntove,-12.00')
if [ "$(cat /app/totals.csv)" = "$expected" ]; then
  echo 1 > /logs/verifier/reward.txt
else
  diff <(echo "$expected") /app/totals.csv
  echo 0 > /logs/verifier/reward.txt
fi
