#!/bin/bash
grep -v '^ *#' /app/ledger.txt | grep '|' | tr -d ' ' | awk -F'|' '
  { name = tolower($2); amount = $3; if (amount ~ /^\(/) { gsub(/[()]/, "", amount); amount = -amount }
    total[name] += amount }
  END { for (name in total) printf "%s,%.2f\n", name, total[name] }' | sort -t, -k2 -rn > /app/totals.csv
