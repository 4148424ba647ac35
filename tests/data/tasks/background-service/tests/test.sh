#!/bin/bash
if python3 -I /tests/ask.py; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
