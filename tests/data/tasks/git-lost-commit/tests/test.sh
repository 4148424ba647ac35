#!/bin/bash
cd /app/prices || exit 1
git() { command git -c safe.directory='*' -c core.fsmonitor=false "$@"; }
points=0
[ "$(git show -s --format=%s rescue 2>/dev/null)" = "Prices of autumn" ] && points=$((points + 1))
[ "$(git show rescue:autumn.csv 2>/dev/null)" = "$(printf 'pumpkins,7\nwalnuts,12')" ] && points=$((points + 1))
[ "$(git rev-parse rescue~1 2>/dev/null)" = "$(git rev-parse main)" ] && points=$((points + 1))
[ "$(git show -s --format=%s main)" = "Prices of summer" ] && points=$((points + 1))
[ "$(git branch --show-current)" = main ] && [ -z "$(git status --porcelain)" ] && points=$((points + 1))
echo "$points of 5 checks passed"
[ "$points" = 5 ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
