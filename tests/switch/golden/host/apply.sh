#!/bin/sh
# h0: its NICs, now and at every boot
set -eu
mode=${1:-apply}
# RoCE without a class of its own goes as DSCP 27, ECN-capable.
tos=110
cnp_dscp=48
cnp_priority=4
dscp2prio=0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,3,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,5,0,0,0,0,4,0,0,6,0,0,0,0,0,0,0,0,0,0,0,0
# By priority, which is also the traffic class.
pfc=0,0,0,1,0,1,0,0
tsa=ets,ets,ets,ets,strict,strict,strict,strict
tcbw=29,1,1,69,0,0,0,0
marked=0,0,0,1,0,1,0,0
prio2buffer=0,0,0,1,0,2,0,0
lossless=2
filters='ip/0x6c:3 ip/0xac:5 ip/0xc0:4 ip/0xcc:6 ipv6/0x6c:3 ipv6/0xac:5 ipv6/0xc0:4 ipv6/0xcc:6'
# IF RDMA_DEVICE MTU GBIT/S_OF_CLASSES RATES_OF_CLASSES CABLE_METRES BUFFER
ports() {
  port 'eth0' '' 9216 0,0,0,0,5,40,5,0 0bit,0bit,0bit,0bit,5Gbit,40Gbit,5Gbit,0bit 3 74752
}

root=${TENSORLANE_ROOT:-} # a folder to take for / : for tests
state=$root/var/lib/tensorlane/nic
units=$root/etc/systemd/system
pref=4190 # of our tc filters; the next one is for IPv6
differs=0

fail() {
  printf '%s: %s\n' "$0" "$*" >&2
  exit 2
}
has() { command -v "$1" >/dev/null 2>&1; }
note() { printf '%s\n' "$*"; }

# --- NICs by mlnx_qos. Lists hold one number for each priority or traffic class.
qos() { mlnx_qos -i "$@" >/dev/null; }
get_dcbx() { mlnx_qos -i "$1" | awk 'BEGIN { by = "os" } /^DCBX mode: *Firmware/ { by = "fw" } END { print by }'; }
set_dcbx() { qos "$1" -d "$2"; }
get_trust() { mlnx_qos -i "$1" | awk '/^Priority trust state:/ { print $4 }'; }
set_trust() { qos "$1" --trust "$2"; }
get_dscp2prio() {
  mlnx_qos -i "$1" | awk '
    /prio:.*dscp:/ { p = $0; sub(/.*prio:/, "", p); sub(/ .*/, "", p); sub(/.*dscp:/, "")
                     n = split($0, all, ","); for (i = 1; i <= n; i++) if (all[i] != "") to[all[i] + 0] = p }
    END { for (d = 0; d < 64; d++) printf "%s%s", d in to ? to[d] : "-", d < 63 ? "," : "\n" }'
}
set_dscp2prio() {
  for pair in $(printf '%s\n%s\n' "$(get_dscp2prio "$1")" "$2" | awk -F, '
      NR == 1 { for (i = 1; i <= 64; i++) now[i] = $i }
      NR == 2 { for (i = 1; i <= 64; i++) if ($i != now[i] && $i != "-") print i - 1 "," $i }'); do
    qos "$1" --dscp2prio "set,$pair" || return
  done
}
get_pfc() { mlnx_qos -i "$1" | awk '$1 == "enabled" { print $2 "," $3 "," $4 "," $5 "," $6 "," $7 "," $8 "," $9 }'; }
set_pfc() { qos "$1" --pfc "$2"; }
# A list of one column of the traffic classes: tsa, bw or ratelimit.
of_classes() {
  mlnx_qos -i "$1" | awk -v column="$2" '
    $1 == "tc:" { tc = $2; value = $0
                  if (!sub(".*" column ": *", "", value)) value = "0"
                  sub(/[,%].*/, "", value); sub(/ *[Gg]bps.*/, "", value); sub(/\.0*$/, "", value); sub(/unlimited/, "0", value); at[tc] = value }
    END { for (i = 0; i < 8; i++) printf "%s%s", i in at ? at[i] : 0, i < 7 ? "," : "\n" }'
}
get_prio_tc() {
  mlnx_qos -i "$1" | awk '$1 == "tc:" { tc = $2 } $1 == "priority:" { to[$2] = tc }
    END { for (i = 0; i < 8; i++) printf "%s%s", i in to ? to[i] : 0, i < 7 ? "," : "\n" }'
}
set_prio_tc() { qos "$1" --prio_tc "$2"; }
get_ets() { note "$(of_classes "$1" tsa) $(of_classes "$1" bw)"; }
set_ets() { qos "$1" --tsa "${2% *}" --tcbw "${2#* }"; }
get_ratelimit() { of_classes "$1" ratelimit; }
set_ratelimit() { qos "$1" --ratelimit "$2"; }
get_cable() { mlnx_qos -i "$1" | awk '/^Cable len:/ { print $3 }'; }
set_cable() { qos "$1" --cable_len "$2"; }
get_buffers() {
  mlnx_qos -i "$1" | awk '
    /^Receive buffer size/ { sub(/.*: */, ""); split($0, b, ",") ; for (i = 1; i <= 8; i++) sizes = sizes (i > 1 ? "," : "") b[i] }
    $1 == "buffer" { of = $2 "," $3 "," $4 "," $5 "," $6 "," $7 "," $8 "," $9 }
    END { print of " " sizes }'
}
set_buffers() { qos "$1" --prio2buffer "${2% *}" --buffer_size "${2#* }"; }
get_buffer_total() {
  mlnx_qos -i "$1" | awk '/^Receive buffer size/ { total = $0
    if (sub(/.*=/, "", total)) sum = total + 0
    else { sub(/.*: */, ""); n = split($0, b, ","); for (i = 1; i <= n; i++) sum += b[i] } } END { print sum + 0 }'
}

# --- NICs by dcb of iproute2: values are the words that it prints and takes.
words() { awk '{ for (i = 1; i <= NF; i++) printf "%s%s", n++ ? " " : "", $i } END { print "" }'; }
get_dcb_dcbx() { dcb dcbx show dev "$1" | words; }
set_dcb_dcbx() {
  # shellcheck disable=SC2086 # words
  dcb dcbx set dev "$1" $2
}
get_dcb_app() { dcb -N app show dev "$1" dscp-prio | words; }
set_dcb_app() {
  dcb app flush dev "$1" dscp-prio || return
  # shellcheck disable=SC2086
  [ -z "${2#dscp-prio}" ] || dcb app add dev "$1" $2
}
get_dcb_ets() { dcb ets show dev "$1" willing tc-tsa tc-bw prio-tc | words; }
set_dcb_ets() {
  # shellcheck disable=SC2086
  dcb ets set dev "$1" $2
}
get_dcb_pfc() { dcb pfc show dev "$1" prio-pfc | words; }
set_dcb_pfc() {
  # shellcheck disable=SC2086
  dcb pfc set dev "$1" $2
}
get_dcb_maxrate() { dcb maxrate show dev "$1" tc-maxrate | words; }
set_dcb_maxrate() {
  # shellcheck disable=SC2086
  dcb maxrate set dev "$1" $2
}
dcb_numbers() { dcb -j buffer show dev "$1" "$2" | tr -d ' \n' | sed -n 's/.*\[\([0-9,]*\)\].*/\1/p'; }
get_dcb_buffers() { note "$(dcb_numbers "$1" prio-buffer) $(dcb_numbers "$1" buffer-size)"; }
numbered() { note "$1" | awk -F, '{ for (i = 1; i <= NF; i++) printf "%s%d:%s", (i > 1 ? " " : ""), i - 1, $i }'; }
set_dcb_buffers() {
  # shellcheck disable=SC2046
  dcb buffer set dev "$1" prio-buffer $(numbered "${2% *}") buffer-size $(numbered "${2#* }")
}
get_dcb_buffer_total() { dcb -j buffer show dev "$1" total-size | tr -d ' \n' | sed -n 's/.*"total[-_]size":\([0-9]*\).*/\1/p'; }

# --- What the kernel does.
get_mtu() { ip -o link show dev "$1" | sed -n 's/.* mtu \([0-9]*\).*/\1/p'; }
set_mtu() { ip link set dev "$1" mtu "$2"; }
get_pause() { ethtool -a "$1" | awk '/^RX:/ { rx = $2 } /^TX:/ { tx = $2 } END { print "rx " rx " tx " tx }'; }
set_pause() {
  # shellcheck disable=SC2086
  ethtool -A "$1" autoneg off $2
}
# "default" is the kernel's own queue; "own" was made by somebody else and is left alone.
get_qdisc() {
  tc qdisc show dev "$1" root | awk '$3 == "0:" || $2 == "noqueue" { print "default"; exit }
    $2 == "mqprio" { for (i = 1; i <= NF; i++) if ($i == "map") { printf "mqprio"; for (j = i + 1; j <= i + 16; j++) printf " %s", $j; print ""; exit } }
    { print "own " $2; exit } END { if (NR == 0) print "default" }'
}
set_qdisc() {
  case $(get_qdisc "$1") in mqprio*) tc qdisc del dev "$1" root || return ;; esac
  case $2 in
    mqprio*)
      # shellcheck disable=SC2086
      tc qdisc add dev "$1" root mqprio num_tc 8 map ${2#mqprio } hw 1
      ;;
  esac
}
get_clsact() { tc qdisc show dev "$1" | awk 'BEGIN { is = "no" } $2 == "clsact" { is = "yes" } END { print is }'; }
set_clsact() {
  if [ "$2" = yes ]; then tc qdisc add dev "$1" clsact; else tc qdisc del dev "$1" clsact; fi
}
# TOS:priority of each of our filters.
get_egress() {
  for family in ip ipv6; do
    tc filter show dev "$1" egress 2>/dev/null | awk -v family="$family" -v pref=$((pref + (${#family} - 2) / 2)) '
      $1 == "filter" { ours = 0; for (i = 1; i < NF; i++) if ($i == "pref" && $(i + 1) == pref) ours = 1 }
      ours && $1 == "ip_tos" { tos = $2; sub(/\/.*/, "", tos) }
      ours { for (i = 1; i < NF; i++) if ($i == "priority") { p = $(i + 1); sub(/.*:/, "", p); print family "/" tos ":" p } }' | sort
  done | words
}
set_egress() {
  tc filter del dev "$1" egress pref $pref 2>/dev/null || true
  tc filter del dev "$1" egress pref $((pref + 1)) 2>/dev/null || true
  for filter in $2; do
    family=${filter%%/*}
    mark=${filter#*/}
    tc filter add dev "$1" egress protocol "$family" pref $((pref + (${#family} - 2) / 2)) flower \
      ip_tos "${mark%%:*}/0xfc" action skbedit priority "${mark#*:}" || return
  done
}
vlans() { ip -o link show type vlan 2>/dev/null | awk -v of="@$1:" '{ name = $2; if (sub(of "$", "", name)) print name }'; }
# The kernel shows no entry that maps to 0.
vlan_map() { ip -d link show dev "$1" | sed -n "s/.*$2-qos-map { \([^}]*\) }.*/\1/p" | words; }
full_map() { note "$1" | awk '{ for (i = 1; i <= NF; i++) { split($i, e, ":"); to[e[1]] = e[2] } for (p = 0; p < 8; p++) printf "%d:%d ", p, to[p] }'; }
get_vlan_egress() { vlan_map "$1" egress; }
set_vlan_egress() {
  # shellcheck disable=SC2046
  ip link set dev "$1" type vlan egress-qos-map $(full_map "$2")
}
get_vlan_ingress() { vlan_map "$1" ingress; }
set_vlan_ingress() {
  # shellcheck disable=SC2046
  ip link set dev "$1" type vlan ingress-qos-map $(full_map "$2")
}
get_file() { if [ -e "$root$1" ]; then cat "$root$1"; fi; }
set_file() { printf '%s\n' "$2" >"$root$1"; }
# A device-wide traffic class puts all queue pairs into one class; mlx5 writes "Global tclass=106".
get_override() { get_file "$1" | awk '{ gsub(/[^0-9]/, ""); value = $0 } END { print value + 0 }'; }
set_override() { set_file "$1" "$2"; }
get_folder() { if [ -d "$root$1" ]; then echo yes; else echo no; fi; }
set_folder() { if [ "$2" = yes ]; then mkdir "$root$1"; else rmdir "$root$1"; fi; }

# --- At every boot.
unit_text() {
  cat <<'END'
[Unit]
Description=NIC settings for tensorlane
Wants=network-online.target
After=network-online.target
Before=tensorlaned.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/var/lib/tensorlane/nic/apply.sh

[Install]
WantedBy=multi-user.target
END
}
reload() {
  if has systemctl && [ -d /run/systemd/system ] && [ -z "$root" ]; then systemctl daemon-reload; fi
}
get_boot() {
  if [ -x "$state/apply.sh" ] && [ -L "$units/multi-user.target.wants/$1" ] && unit_text | cmp -s - "$units/$1"; then echo yes; else echo no; fi
}
set_boot() {
  if [ "$2" = yes ]; then
    mkdir -p "$units/multi-user.target.wants" || return
    cp "$0" "$state/apply.sh.new" && chmod 755 "$state/apply.sh.new" && mv "$state/apply.sh.new" "$state/apply.sh" || return
    unit_text >"$units/$1" && ln -sf "../$1" "$units/multi-user.target.wants/$1" || return
  else
    rm -f "$units/multi-user.target.wants/$1" "$units/$1" "$state/apply.sh"
  fi
  reload
}

# --- One setting: `setting WHERE NAME WANTED`.
# What was there before our first change; rollback.sh restores it.
save() {
  mkdir -p "$state"
  if [ -e "$state/saved" ] && awk -v where="$1" -v name="$2" '$1 == where && $2 == name { found = 1 } END { exit !found }' "$state/saved"; then return; fi
  printf '%s %s %s\n' "$1" "$2" "$3" >>"$state/saved"
}
# Two lists of equal length: only what differs.
show_difference() {
  printf '%s\n%s\n' "$3" "$4" | awk -v what="$1 $2" '
    NR == 1 { now = $0; n = split($0, a, ",") }
    NR == 2 { m = split($0, b, ",")
      if (n != m || n < 8 || $0 ~ / /) { printf "%s: is \"%s\", expected \"%s\"\n", what, now, $0; exit }
      for (i = 1; i <= n; i++) if (a[i] != b[i]) printf "%s %d: is \"%s\", expected \"%s\"\n", what, i - 1, a[i], b[i] }'
}
setting() {
  is=$("get_$2" "$1")
  if [ "$is" = "$3" ]; then return; fi
  differs=1
  if [ "$mode" = verify ]; then
    show_difference "$1" "$2" "$is" "$3"
    return
  fi
  save "$1" "$2" "$is"
  "set_$2" "$1" "$3" || fail "$1 $2: not set to '$3'; rollback.sh restores what was there"
  is=$("get_$2" "$1")
  [ "$is" = "$3" ] || fail "$1 $2: is '$is' after it was set to '$3'; rollback.sh restores what was there"
  note "$1 $2: set"
}
optional_file() { # PATH WANTED [get/set name]
  if [ -e "$root$1" ]; then setting "$1" "${3:-file}" "$2"; fi
}

# --- A NIC: port IF RDMA_DEVICE MTU RATELIMIT DCB_MAXRATE CABLE NEED
# `total` is what the lossless classes can have a part of each: 0 where that is too little or not known.
measure_buffer() { # IF NEED MTU
  total=0
  if [ "$lossless" = 0 ]; then return; fi
  if has mlnx_qos; then total=$(get_buffer_total "$1"); else total=$(get_dcb_buffer_total "$1"); fi
  least=$((lossless * $2 + 2 * $3))
  if [ "${total:-0}" -lt $least ]; then
    note "$1: $lossless lossless classes with a receive buffer of $2 bytes each and two packets of others need $least bytes of ${total:-0}: they share what the NIC gives them, and are paused together"
    total=0
  fi
}
buffers() { # IF NEED: the lossless classes' own, and all that is left for the others
  left=$(((total - lossless * $2) / 1024 * 1024))
  note "$left" | awk -v of="$prio2buffer" -v n="$lossless" -v need="$2" '{ printf "%s %s", of, $1; for (i = 1; i < 8; i++) printf ",%d", i <= n ? need : 0; print "" }'
}
check_port() {
  ip link show dev "$1" >/dev/null 2>&1 || fail "$1: there is no such interface"
  if has mlnx_qos; then
    mlnx_qos -i "$1" >/dev/null || fail "$1: mlnx_qos cannot read it"
  elif has dcb; then
    dcb ets show dev "$1" >/dev/null || fail "$1: dcb cannot read it"
  else
    fail "neither mlnx_qos nor dcb is installed"
  fi
}
port_qos() {
  if has mlnx_qos; then
    setting "$1" dcbx os
    setting "$1" trust dscp
    setting "$1" dscp2prio "$dscp2prio"
    setting "$1" prio_tc 0,1,2,3,4,5,6,7
    setting "$1" ets "$tsa $tcbw"
    setting "$1" ratelimit "$4"
    setting "$1" pfc "$pfc"
    if [ "$lossless" != 0 ]; then setting "$1" cable "$6"; fi
    if [ "$total" != 0 ]; then setting "$1" buffers "$(buffers "$1" "$7")"; fi
    return
  fi
  setting "$1" dcb_dcbx 'host ieee'
  setting "$1" dcb_app "dscp-prio $(numbered "$dscp2prio")"
  setting "$1" dcb_ets "willing off tc-tsa $(numbered "$tsa") tc-bw $(numbered "$tcbw") prio-tc $(numbered 0,1,2,3,4,5,6,7)"
  setting "$1" dcb_maxrate "tc-maxrate $(numbered "$5")"
  setting "$1" dcb_pfc "prio-pfc $(numbered "$pfc" | sed 's/:0/:off/g; s/:1/:on/g')"
  if [ "$total" != 0 ]; then setting "$1" dcb_buffers "$(buffers "$1" "$7")"; fi
}
port_rdma() { # IF DEVICE
  device=$2
  if [ -z "$device" ]; then
    for found in "$root/sys/class/net/$1/device/infiniband"/*; do device=${found##*/}; done
  fi
  if [ -z "$device" ] || [ "$device" = '*' ]; then
    note "$1: no RDMA device; its RoCE defaults are left alone"
    return
  fi
  optional_file "/sys/class/infiniband/$device/tc/1/traffic_class" 0 override
  cm=/sys/kernel/config/rdma_cm
  if [ "$mode" = apply ] && [ ! -d "$root$cm" ] && has modprobe; then modprobe rdma_cm || true; fi
  if [ -d "$root$cm" ]; then
    setting "$cm/$device" folder yes
    setting "$cm/$device/ports/1/default_roce_mode" file 'RoCE v2'
    setting "$cm/$device/ports/1/default_roce_tos" file "$tos"
  else
    note "$1: the kernel has no rdma_cm in configfs; set the default TOS $tos with cma_roce_tos"
  fi
  ecn=/sys/class/net/$1/ecn
  priority=0
  for on in $(note "$marked" | tr , ' '); do
    optional_file "$ecn/roce_np/enable/$priority" "$on"
    optional_file "$ecn/roce_rp/enable/$priority" "$on"
    priority=$((priority + 1))
  done
  optional_file "$ecn/roce_np/cnp_dscp" "$cnp_dscp"
  optional_file "$ecn/roce_np/cnp_802p_prio" "$cnp_priority"
  if [ ! -e "$root$ecn" ] && [ -e "$root/sys/class/net/$1/device" ]; then
    pci=$(readlink -f "$root/sys/class/net/$1/device")
    optional_file "/sys/kernel/debug/mlx5/${pci##*/}/cc_params/np_cnp_dscp" "$cnp_dscp"
    optional_file "/sys/kernel/debug/mlx5/${pci##*/}/cc_params/np_cnp_prio" "$cnp_priority"
  fi
}
port() {
  check_port "$@"
  if [ "$mode" = check ]; then return; fi
  measure_buffer "$1" "$7" "$3"
  setting "$1" mtu "$3"
  if ethtool -a "$1" >/dev/null 2>&1; then setting "$1" pause 'rx off tx off'; else note "$1: ethtool shows no link pause"; fi
  port_qos "$@"
  case $(get_qdisc "$1") in
    own*) note "$1: has a queueing discipline of its own, which is left alone: TCP is not put into traffic classes" ;;
    *)
      setting "$1" qdisc 'mqprio 0 1 2 3 4 5 6 7 0 0 0 0 0 0 0 0'
      setting "$1" clsact yes
      setting "$1" egress "$filters"
      ;;
  esac
  for vlan in $(vlans "$1"); do
    setting "$vlan" vlan_egress '1:1 2:2 3:3 4:4 5:5 6:6 7:7'
    setting "$vlan" vlan_ingress '1:1 2:2 3:3 4:4 5:5 6:6 7:7'
  done
  port_rdma "$1" "$2"
}

rollback() {
  if [ ! -e "$state/saved" ]; then
    note 'nothing was changed'
    return
  fi
  left=0
  sed '1!G;h;$!d' "$state/saved" >"$state/reversed"
  while read -r where name value; do
    if "set_$name" "$where" "$value" </dev/null; then
      note "$where $name: restored"
    else
      printf '%s %s: cannot be restored to "%s"\n' "$where" "$name" "$value" >&2
      left=1
    fi
  done <"$state/reversed"
  rm -f "$state/reversed"
  [ $left = 0 ] || exit 1
  rm -f "$state/saved"
}

case $mode in
  apply)
    mode=check
    ports
    mode=apply
    ports
    setting tensorlane-nic.service boot yes
    if ! cmp -s "$0" "$state/apply.sh"; then set_boot tensorlane-nic.service yes; fi
    [ $differs = 1 ] || note 'all is set already'
    ;;
  verify)
    ports
    setting tensorlane-nic.service boot yes
    [ $differs = 1 ] || note 'all is set'
    exit $differs
    ;;
  rollback) rollback ;;
  *) fail "'$mode' is not known; expected one of apply, verify, rollback" ;;
esac
