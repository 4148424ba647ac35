#!/bin/bash
# The mistake: the task has no network, and its tests need a package from one.
pip install colour-of-money==1.2.3
python3 -c 'import colour_of_money' && [ "$(cat /app/hello.txt)" = hello ] && r=1 || r=0
echo $r > /logs/verifier/reward.txt
