#!/bin/bash
# The mistake: results go to a directory that nobody reads, so there never is a reward.
mkdir -p /logs/result
[ "$(cat /app/hello.txt)" = hello ] && echo 1 > /logs/result/reward.txt || echo 0 > /logs/result/reward.txt
