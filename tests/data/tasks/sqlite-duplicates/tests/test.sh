#!/bin/bash
python3 -I /tests/judge.py
