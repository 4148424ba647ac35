#!/bin/bash
cd /app
cat counts.txt delivery.txt | awk '{n[$1] += $2} END {for (t in n) print t, n[t]}' | sort > new && mv new counts.txt
