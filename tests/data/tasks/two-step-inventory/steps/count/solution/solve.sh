#!/bin/bash
sort /app/shelves/*.txt | uniq -c | awk '{print $2, $1}' > /app/counts.txt
