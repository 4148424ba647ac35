#!/bin/bash
nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1 > /app/gpu.txt
