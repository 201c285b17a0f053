#!/bin/sh
# s0: QoS of the fabric's classes for NVIDIA Cumulus Linux (NVUE), from fabric.yaml
# Words of Cumulus Linux 5.11.
# The RoCE macro ('nv set qos roce') has one lossless class and would overrule this: it is not used.
set -eu
nv set qos mapping default-global trust both
nv set qos mapping default-global dscp 0 switch-priority 0
nv set qos mapping default-global dscp 1 switch-priority 0
nv set qos mapping default-global dscp 2 switch-priority 0
nv set qos mapping default-global dscp 3 switch-priority 0
nv set qos mapping default-global dscp 4 switch-priority 0
nv set qos mapping default-global dscp 5 switch-priority 0
nv set qos mapping default-global dscp 6 switch-priority 0
nv set qos mapping default-global dscp 7 switch-priority 0
nv set qos mapping default-global dscp 8 switch-priority 0
nv set qos mapping default-global dscp 9 switch-priority 0
nv set qos mapping default-global dscp 10 switch-priority 0
nv set qos mapping default-global dscp 11 switch-priority 0
nv set qos mapping default-global dscp 12 switch-priority 0
nv set qos mapping default-global dscp 13 switch-priority 0
nv set qos mapping default-global dscp 14 switch-priority 0
nv set qos mapping default-global dscp 15 switch-priority 0
nv set qos mapping default-global dscp 16 switch-priority 0
nv set qos mapping default-global dscp 17 switch-priority 0
nv set qos mapping default-global dscp 18 switch-priority 0
nv set qos mapping default-global dscp 19 switch-priority 0
nv set qos mapping default-global dscp 20 switch-priority 0
nv set qos mapping default-global dscp 21 switch-priority 0
nv set qos mapping default-global dscp 22 switch-priority 0
nv set qos mapping default-global dscp 23 switch-priority 0
nv set qos mapping default-global dscp 24 switch-priority 0
nv set qos mapping default-global dscp 25 switch-priority 0
nv set qos mapping default-global dscp 26 switch-priority 0
nv set qos mapping default-global dscp 27 switch-priority 3
nv set qos mapping default-global dscp 28 switch-priority 0
nv set qos mapping default-global dscp 29 switch-priority 0
nv set qos mapping default-global dscp 30 switch-priority 0
nv set qos mapping default-global dscp 31 switch-priority 0
nv set qos mapping default-global dscp 32 switch-priority 0
nv set qos mapping default-global dscp 33 switch-priority 0
nv set qos mapping default-global dscp 34 switch-priority 0
nv set qos mapping default-global dscp 35 switch-priority 0
nv set qos mapping default-global dscp 36 switch-priority 0
nv set qos mapping default-global dscp 37 switch-priority 0
nv set qos mapping default-global dscp 38 switch-priority 0
nv set qos mapping default-global dscp 39 switch-priority 0
nv set qos mapping default-global dscp 40 switch-priority 0
nv set qos mapping default-global dscp 41 switch-priority 0
nv set qos mapping default-global dscp 42 switch-priority 0
nv set qos mapping default-global dscp 43 switch-priority 5
nv set qos mapping default-global dscp 44 switch-priority 0
nv set qos mapping default-global dscp 45 switch-priority 0
nv set qos mapping default-global dscp 46 switch-priority 0
nv set qos mapping default-global dscp 47 switch-priority 0
nv set qos mapping default-global dscp 48 switch-priority 4
nv set qos mapping default-global dscp 49 switch-priority 0
nv set qos mapping default-global dscp 50 switch-priority 0
nv set qos mapping default-global dscp 51 switch-priority 6
nv set qos mapping default-global dscp 52 switch-priority 0
nv set qos mapping default-global dscp 53 switch-priority 0
nv set qos mapping default-global dscp 54 switch-priority 0
nv set qos mapping default-global dscp 55 switch-priority 0
nv set qos mapping default-global dscp 56 switch-priority 0
nv set qos mapping default-global dscp 57 switch-priority 0
nv set qos mapping default-global dscp 58 switch-priority 0
nv set qos mapping default-global dscp 59 switch-priority 0
nv set qos mapping default-global dscp 60 switch-priority 0
nv set qos mapping default-global dscp 61 switch-priority 0
nv set qos mapping default-global dscp 62 switch-priority 0
nv set qos mapping default-global dscp 63 switch-priority 0
nv set qos mapping default-global pcp 0 switch-priority 0
nv set qos mapping default-global pcp 1 switch-priority 0
nv set qos mapping default-global pcp 2 switch-priority 0
nv set qos mapping default-global pcp 3 switch-priority 3
nv set qos mapping default-global pcp 4 switch-priority 4
nv set qos mapping default-global pcp 5 switch-priority 5
nv set qos mapping default-global pcp 6 switch-priority 6
nv set qos mapping default-global pcp 7 switch-priority 0
nv set qos egress-queue-mapping default-global switch-priority 0 traffic-class 0
nv set qos egress-queue-mapping default-global switch-priority 1 traffic-class 1
nv set qos egress-queue-mapping default-global switch-priority 2 traffic-class 2
nv set qos egress-queue-mapping default-global switch-priority 3 traffic-class 3
nv set qos egress-queue-mapping default-global switch-priority 4 traffic-class 4
nv set qos egress-queue-mapping default-global switch-priority 5 traffic-class 5
nv set qos egress-queue-mapping default-global switch-priority 6 traffic-class 6
nv set qos egress-queue-mapping default-global switch-priority 7 traffic-class 7
nv set qos egress-scheduler default-global traffic-class 0 mode dwrr
nv set qos egress-scheduler default-global traffic-class 0 bw-percent 29
nv set qos egress-scheduler default-global traffic-class 1 mode dwrr
nv set qos egress-scheduler default-global traffic-class 1 bw-percent 1
nv set qos egress-scheduler default-global traffic-class 2 mode dwrr
nv set qos egress-scheduler default-global traffic-class 2 bw-percent 1
nv set qos egress-scheduler default-global traffic-class 3 mode dwrr
nv set qos egress-scheduler default-global traffic-class 3 bw-percent 69
nv set qos egress-scheduler default-global traffic-class 4 mode strict
nv set qos egress-scheduler default-global traffic-class 5 mode strict
nv set qos egress-scheduler default-global traffic-class 6 mode strict
nv set qos egress-scheduler default-global traffic-class 7 mode strict
nv set qos traffic-pool default-lossless memory-percent 50
nv set qos traffic-pool default-lossy memory-percent 50
nv set qos pfc-watchdog polling-interval 100
nv set qos pfc-watchdog robustness 2
# In doubt: Cumulus documents no time of restoration and no other action than to drop.
# 100 Gbit/s, cable 3 m, MTU 9216
nv set interface swp1 link mtu 9216
nv set qos egress-shaper FABRIC-0 traffic-class 4 max-rate 5000000
nv set qos egress-shaper FABRIC-0 traffic-class 5 max-rate 40000000
nv set qos egress-shaper FABRIC-0 traffic-class 6 max-rate 5000000
nv set interface swp1 qos egress-shaper profile FABRIC-0
nv set qos congestion-control FABRIC-0 traffic-class 3 ecn enable
nv set qos congestion-control FABRIC-0 traffic-class 3 red disable
nv set qos congestion-control FABRIC-0 traffic-class 3 min-threshold 400000
nv set qos congestion-control FABRIC-0 traffic-class 3 max-threshold 1600000
nv set qos congestion-control FABRIC-0 traffic-class 3 probability 20
nv set qos congestion-control FABRIC-0 traffic-class 5 ecn enable
nv set qos congestion-control FABRIC-0 traffic-class 5 red disable
nv set qos congestion-control FABRIC-0 traffic-class 5 min-threshold 200000
nv set qos congestion-control FABRIC-0 traffic-class 5 max-threshold 800000
nv set qos congestion-control FABRIC-0 traffic-class 5 probability 20
nv set interface swp1 qos congestion-control profile FABRIC-0
nv set qos pfc FABRIC-0 switch-priority 3,5
nv set qos pfc FABRIC-0 tx enable
nv set qos pfc FABRIC-0 rx enable
nv set qos pfc FABRIC-0 cable-length 3
nv set interface swp1 qos pfc profile FABRIC-0
# In doubt: some releases say 'pfc-watchdog' alone.
nv set interface swp1 qos pfc-watchdog state enable
# 100 Gbit/s, no link, MTU 9216
nv set interface swp2 link mtu 9216
nv set qos egress-shaper FABRIC-1 traffic-class 4 max-rate 5000000
nv set qos egress-shaper FABRIC-1 traffic-class 5 max-rate 40000000
nv set qos egress-shaper FABRIC-1 traffic-class 6 max-rate 5000000
nv set interface swp2 qos egress-shaper profile FABRIC-1
nv set qos congestion-control FABRIC-1 traffic-class 3 ecn enable
nv set qos congestion-control FABRIC-1 traffic-class 3 red disable
nv set qos congestion-control FABRIC-1 traffic-class 3 min-threshold 400000
nv set qos congestion-control FABRIC-1 traffic-class 3 max-threshold 1600000
nv set qos congestion-control FABRIC-1 traffic-class 3 probability 20
nv set qos congestion-control FABRIC-1 traffic-class 5 ecn enable
nv set qos congestion-control FABRIC-1 traffic-class 5 red disable
nv set qos congestion-control FABRIC-1 traffic-class 5 min-threshold 200000
nv set qos congestion-control FABRIC-1 traffic-class 5 max-threshold 800000
nv set qos congestion-control FABRIC-1 traffic-class 5 probability 20
nv set interface swp2 qos congestion-control profile FABRIC-1
nv set qos mapping FABRIC-EDGE trust port
nv set qos mapping FABRIC-EDGE port-default-sp 0
# In doubt: whether this release matches the DSCP of IPv6.
nv set acl FABRIC-EDGE4 type ipv4
nv set acl FABRIC-EDGE4 rule 127 match ip dscp 27
nv set acl FABRIC-EDGE4 rule 127 action deny
nv set acl FABRIC-EDGE4 rule 143 match ip dscp 43
nv set acl FABRIC-EDGE4 rule 143 action deny
nv set acl FABRIC-EDGE4 rule 151 match ip dscp 51
nv set acl FABRIC-EDGE4 rule 151 action deny
nv set acl FABRIC-EDGE4 rule 999 action permit
# In doubt: whether this release matches the DSCP of IPv6.
nv set acl FABRIC-EDGE6 type ipv6
nv set acl FABRIC-EDGE6 rule 127 match ip dscp 27
nv set acl FABRIC-EDGE6 rule 127 action deny
nv set acl FABRIC-EDGE6 rule 143 match ip dscp 43
nv set acl FABRIC-EDGE6 rule 143 action deny
nv set acl FABRIC-EDGE6 rule 151 match ip dscp 51
nv set acl FABRIC-EDGE6 rule 151 action deny
nv set acl FABRIC-EDGE6 rule 999 action permit
nv set interface swp2 qos mapping profile FABRIC-EDGE
nv set interface swp2 acl FABRIC-EDGE4 inbound
nv set interface swp2 acl FABRIC-EDGE6 inbound
nv config apply
