#!/bin/bash
for n in $(seq 9000 9200); do
  prime=1
  for d in $(seq 2 97); do [ $((n % d)) = 0 ] && { prime=0; break; }; done
  [ $prime = 1 ] && echo "$n"
done > /app/primes.txt
