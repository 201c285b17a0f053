#!/bin/sh
# s0: egress queues of every port, from fabric.yaml
# software queues: lossless classes are queued without flow control
set -eu
# Traffic is classified by DSCP; PCP is not looked at.
tc qdisc del dev Ethernet0 root 2>/dev/null || true
tc qdisc del dev Ethernet0 clsact 2>/dev/null || true
tc -batch - <<'END'
qdisc add dev Ethernet0 root handle 1: htb default 10
class add dev Ethernet0 parent 1: classid 1:1 htb rate 100000000000bit ceil 100000000000bit burst 3125000 cburst 3125000 quantum 9230
class add dev Ethernet0 parent 1:1 classid 1:16 htb rate 5000000000bit ceil 5000000000bit burst 625000 cburst 625000 prio 0 quantum 9230
qdisc add dev Ethernet0 parent 1:16 handle 16: bfifo limit 25000000
class add dev Ethernet0 parent 1:1 classid 1:15 htb rate 40000000000bit ceil 40000000000bit burst 5000000 cburst 5000000 prio 1 quantum 9230
qdisc add dev Ethernet0 parent 1:15 handle 15: red limit 3200000 min 200000 max 800000 avpkt 1000 burst 401 probability 0.20 bandwidth 100000000000bit ecn
class add dev Ethernet0 parent 1:1 classid 1:14 htb rate 5000000000bit ceil 5000000000bit burst 625000 cburst 625000 prio 2 quantum 9230
qdisc add dev Ethernet0 parent 1:14 handle 14: bfifo limit 25000000
class add dev Ethernet0 parent 1:1 classid 1:13 htb rate 34500000000bit ceil 100000000000bit burst 4312500 cburst 4312500 prio 7 quantum 155930
qdisc add dev Ethernet0 parent 1:13 handle 13: red limit 6400000 min 400000 max 1600000 avpkt 1000 burst 801 probability 0.20 bandwidth 100000000000bit ecn
class add dev Ethernet0 parent 1:1 classid 1:10 htb rate 14500000000bit ceil 100000000000bit burst 1812500 cburst 1812500 prio 7 quantum 65536
qdisc add dev Ethernet0 parent 1:10 handle 10: bfifo limit 25000000
filter add dev Ethernet0 parent 1: protocol ip prio 4 u32 match ip dsfield 0x6c 0xfc flowid 1:13
filter add dev Ethernet0 parent 1: protocol ipv6 prio 5 u32 match ip6 priority 0x6c 0xfc flowid 1:13
filter add dev Ethernet0 parent 1: protocol 802.1Q prio 6 u32 match u16 0x406c 0xf0fc at 0 flowid 1:13
filter add dev Ethernet0 parent 1: protocol 802.1Q prio 6 u32 match u16 0x66c0 0xffc0 at 0 flowid 1:13
filter add dev Ethernet0 parent 1: protocol ip prio 4 u32 match ip dsfield 0xac 0xfc flowid 1:15
filter add dev Ethernet0 parent 1: protocol ipv6 prio 5 u32 match ip6 priority 0xac 0xfc flowid 1:15
filter add dev Ethernet0 parent 1: protocol 802.1Q prio 6 u32 match u16 0x40ac 0xf0fc at 0 flowid 1:15
filter add dev Ethernet0 parent 1: protocol 802.1Q prio 6 u32 match u16 0x6ac0 0xffc0 at 0 flowid 1:15
filter add dev Ethernet0 parent 1: protocol ip prio 4 u32 match ip dsfield 0xc0 0xfc flowid 1:14
filter add dev Ethernet0 parent 1: protocol ipv6 prio 5 u32 match ip6 priority 0xc0 0xfc flowid 1:14
filter add dev Ethernet0 parent 1: protocol 802.1Q prio 6 u32 match u16 0x40c0 0xf0fc at 0 flowid 1:14
filter add dev Ethernet0 parent 1: protocol 802.1Q prio 6 u32 match u16 0x6c00 0xffc0 at 0 flowid 1:14
filter add dev Ethernet0 parent 1: protocol ip prio 4 u32 match ip dsfield 0xcc 0xfc flowid 1:16
filter add dev Ethernet0 parent 1: protocol ipv6 prio 5 u32 match ip6 priority 0xcc 0xfc flowid 1:16
filter add dev Ethernet0 parent 1: protocol 802.1Q prio 6 u32 match u16 0x40cc 0xf0fc at 0 flowid 1:16
filter add dev Ethernet0 parent 1: protocol 802.1Q prio 6 u32 match u16 0x6cc0 0xffc0 at 0 flowid 1:16
END
tc qdisc del dev Ethernet4 root 2>/dev/null || true
tc qdisc del dev Ethernet4 clsact 2>/dev/null || true
tc -batch - <<'END'
qdisc add dev Ethernet4 root handle 1: htb default 10
class add dev Ethernet4 parent 1: classid 1:1 htb rate 100000000000bit ceil 100000000000bit burst 3125000 cburst 3125000 quantum 9230
class add dev Ethernet4 parent 1:1 classid 1:16 htb rate 5000000000bit ceil 5000000000bit burst 625000 cburst 625000 prio 0 quantum 9230
qdisc add dev Ethernet4 parent 1:16 handle 16: bfifo limit 25000000
class add dev Ethernet4 parent 1:1 classid 1:15 htb rate 40000000000bit ceil 40000000000bit burst 5000000 cburst 5000000 prio 1 quantum 9230
qdisc add dev Ethernet4 parent 1:15 handle 15: red limit 3200000 min 200000 max 800000 avpkt 1000 burst 401 probability 0.20 bandwidth 100000000000bit ecn
class add dev Ethernet4 parent 1:1 classid 1:14 htb rate 5000000000bit ceil 5000000000bit burst 625000 cburst 625000 prio 2 quantum 9230
qdisc add dev Ethernet4 parent 1:14 handle 14: bfifo limit 25000000
class add dev Ethernet4 parent 1:1 classid 1:13 htb rate 34500000000bit ceil 100000000000bit burst 4312500 cburst 4312500 prio 7 quantum 155930
qdisc add dev Ethernet4 parent 1:13 handle 13: red limit 6400000 min 400000 max 1600000 avpkt 1000 burst 801 probability 0.20 bandwidth 100000000000bit ecn
class add dev Ethernet4 parent 1:1 classid 1:10 htb rate 14500000000bit ceil 100000000000bit burst 1812500 cburst 1812500 prio 7 quantum 65536
qdisc add dev Ethernet4 parent 1:10 handle 10: bfifo limit 25000000
filter add dev Ethernet4 parent 1: protocol ip prio 4 u32 match ip dsfield 0x6c 0xfc flowid 1:13
filter add dev Ethernet4 parent 1: protocol ipv6 prio 5 u32 match ip6 priority 0x6c 0xfc flowid 1:13
filter add dev Ethernet4 parent 1: protocol 802.1Q prio 6 u32 match u16 0x406c 0xf0fc at 0 flowid 1:13
filter add dev Ethernet4 parent 1: protocol 802.1Q prio 6 u32 match u16 0x66c0 0xffc0 at 0 flowid 1:13
filter add dev Ethernet4 parent 1: protocol ip prio 4 u32 match ip dsfield 0xac 0xfc flowid 1:15
filter add dev Ethernet4 parent 1: protocol ipv6 prio 5 u32 match ip6 priority 0xac 0xfc flowid 1:15
filter add dev Ethernet4 parent 1: protocol 802.1Q prio 6 u32 match u16 0x40ac 0xf0fc at 0 flowid 1:15
filter add dev Ethernet4 parent 1: protocol 802.1Q prio 6 u32 match u16 0x6ac0 0xffc0 at 0 flowid 1:15
filter add dev Ethernet4 parent 1: protocol ip prio 4 u32 match ip dsfield 0xc0 0xfc flowid 1:14
filter add dev Ethernet4 parent 1: protocol ipv6 prio 5 u32 match ip6 priority 0xc0 0xfc flowid 1:14
filter add dev Ethernet4 parent 1: protocol 802.1Q prio 6 u32 match u16 0x40c0 0xf0fc at 0 flowid 1:14
filter add dev Ethernet4 parent 1: protocol 802.1Q prio 6 u32 match u16 0x6c00 0xffc0 at 0 flowid 1:14
filter add dev Ethernet4 parent 1: protocol ip prio 4 u32 match ip dsfield 0xcc 0xfc flowid 1:16
filter add dev Ethernet4 parent 1: protocol ipv6 prio 5 u32 match ip6 priority 0xcc 0xfc flowid 1:16
filter add dev Ethernet4 parent 1: protocol 802.1Q prio 6 u32 match u16 0x40cc 0xf0fc at 0 flowid 1:16
filter add dev Ethernet4 parent 1: protocol 802.1Q prio 6 u32 match u16 0x6cc0 0xffc0 at 0 flowid 1:16
qdisc add dev Ethernet4 clsact
filter add dev Ethernet4 ingress protocol ip prio 4 u32 match ip dsfield 0x6c 0xfc action drop
filter add dev Ethernet4 ingress protocol ipv6 prio 5 u32 match ip6 priority 0x6c 0xfc action drop
filter add dev Ethernet4 ingress protocol ip prio 4 u32 match ip dsfield 0xac 0xfc action drop
filter add dev Ethernet4 ingress protocol ipv6 prio 5 u32 match ip6 priority 0xac 0xfc action drop
filter add dev Ethernet4 ingress protocol ip prio 4 u32 match ip dsfield 0xcc 0xfc action drop
filter add dev Ethernet4 ingress protocol ipv6 prio 5 u32 match ip6 priority 0xcc 0xfc action drop
END
