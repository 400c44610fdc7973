#!/bin/sh
# The archiver beside zig-cc.sh.
exec "$STK_ZIG" ar "$@"
