#!/bin/bash
# The mistake: it waits for longer than its own time-out of two seconds.
sleep 20
[ "$(cat /app/hello.txt)" = hello ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
