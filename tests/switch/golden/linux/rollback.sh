#!/bin/sh
# s0: the kernel's own egress queue at every port
# software queues: lossless classes are queued without flow control
set -eu
tc qdisc del dev Ethernet0 root 2>/dev/null || true
tc qdisc del dev Ethernet0 clsact 2>/dev/null || true
tc qdisc del dev Ethernet4 root 2>/dev/null || true
tc qdisc del dev Ethernet4 clsact 2>/dev/null || true
