#!/bin/bash
[ "$(cat /app/counts.txt)" = "$(printf 'bolt 2\nnut 2\nscrew 1')" ] && r=1 || r=0
echo $r > /logs/verifier/reward.txt
