#!/bin/sh
# h0: says what of its NICs is not as it should be, and changes nothing
exec "$(dirname "$0")/apply.sh" verify
