#!/bin/sh
exec /bin/sh "$HERMES_BUNDLE/standin.sh" "${0##*/}" "$@"
