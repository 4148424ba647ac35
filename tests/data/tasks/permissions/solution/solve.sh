#!/bin/bash
cd /app/site
find . -type d -exec chmod 755 {} +
find . -type f -exec chmod 644 {} +
find . -type f -name '*.sh' -exec chmod 755 {} +
find . -type f -path '*/private/*' -exec chmod 600 {} +
find . -depth -type d -name private -exec chmod 700 {} +
