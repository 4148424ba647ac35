#!/bin/bash
name=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)
[ "$name" ] && [ "$(cat /app/gpu.txt)" = "$name" ] && r=1 || r=0
echo $r > /logs/verifier/reward.txt
