#!/bin/bash
reward() { echo "$1" > /logs/verifier/reward.txt; exit; }
cd /app/wordcount || reward 0
grep -q -- '-Wall -Wextra -Werror' Makefile || reward 0
{ make clean && make; } || reward 0
check() {
  found=$(printf "$1" | timeout 10 ./wordcount)
  [ "$found" = "$2" ] || { echo "of '$1' it counts '$found' and not $2"; reward 0; }
}
check '' 0
check '   \n\t' 0
check 'one' 1
check ' one  two\tthree\n\nfour ' 4
check '\xff \xffx' 2
check "$(seq -s ' ' 5000)" 5000
reward 1
