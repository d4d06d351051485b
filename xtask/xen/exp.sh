# The comparison of `cargo xtask xen exp`, run in dom0. The kernel argument xexp lists the
# measurements: COLUMN.WIRE.CELL…+COLUMN.WIRE.CELL…. A CELL is a direction and a number of guests.
#
# The wire of each column is dom0's network stack. For netback it is connected to the bridge by a
# veth pair, for Grantway by a TAP.
#
# | wire  | frames from the wire                  | frames to the wire |
# |---|---|---|
# | large | segments of up to 64 KB               | the same |
# | mtu   | 1514 bytes, whole checksums           | the same |
# | lro   | the same, merged by the backend: the kernel by GRO with NAPI, ours by LRO | |

# ours_file WIRE GRANTS: writes Grantway's configuration.
ours_file() {
  wire='kind = "tap"'
  at=none
  [ $1 = large ] && wire='kind = "local"'
  [ $1 = lro ] && at=physical
  cat >/etc/grantway.toml <<EOC
[driver]
grants = "$2"
[lro]
at = "$at"
[[nic]]
name = "w0"
$wire
addresses = ["192.168.77.1/24"]
EOC
}

# begin COLUMN: starts its backend and attaches an interface to each guest.
begin() {
  case $1 in
  netback)
    ip link add w0 type veth && brctl addbr br0 && ip link set br0 up &&
      brctl addif br0 veth0 && ip link set veth0 up &&
      ip addr add 192.168.77.1/24 dev w0 && ip link set w0 up || return 1
    echo 1 >/sys/bus/xen-backend/drivers_autoprobe
    script=vif-exp
    ;;
  *)
    echo 0 >/sys/bus/xen-backend/drivers_autoprobe
    script=vif-none
    wire $1 large || return 1
    ;;
  esac
  for n in 2 3; do
    xl network-attach guest$n mac=00:16:3e:00:00:0$n script=$script || return 1
  done
  for n in 2 3; do
    within 60 ping -c 1 -W 2 192.168.77.$n || return 1
  done
}

# wire COLUMN KIND: changes the wire to this kind.
wire() {
  case $1 in
  netback)
    ip link show dev w0 >/dev/null 2>&1 || return 1
    tso=off gro=off
    [ $2 = large ] && tso=on
    [ $2 = lro ] && gro=on
    for end in w0 veth0; do
      ethtool -K $end tx $tso tso $tso gso $tso || return 1
    done
    ethtool -K veth0 gro $gro
    ;;
  *)
    # The next process takes the guests over.
    ends
    ours_file $2 ${1#grantway-}
    grantway xen /etc/grantway.toml >>/tmp/serve.log 2>&1 &
    within 20 ip addr show dev w0
    ;;
  esac
}

# ends: stops Grantway's process, if it runs.
ends() {
  grantway status >/dev/null 2>&1 || return 0
  grantway down && within 20 gone w0
}

gone() { ! ip link show dev $1; }

# end COLUMN: detaches the interfaces and stops the backend.
end() {
  for n in 2 3; do
    id=$(xl domid guest$n)
    xl network-detach guest$n 00:16:3e:00:00:0$n
    within 30 clean 0 $id || return 1
  done
  case $1 in
  netback) ip link set br0 down && brctl delbr br0 && ip link del w0 ;;
  *) ends ;;
  esac
}

# streams CELL: starts one stream per guest.
streams() {
  guests=2
  [ ${1#?} = 2 ] && guests="2 3"
  for n in $guests; do
    case $1 in
    r*) on $n "wget -q -O /dev/null http://192.168.77.1/zeros >/dev/null 2>&1 &" || return 1 ;;
    *) wget -q -O /dev/null http://192.168.77.$n/zeros & ;;
    esac
  done
}

silence() {
  killall wget 2>/dev/null
  for n in 2 3; do on $n "killall wget; true" || return 1; done
}

# cell COLUMN WIRE CELL: measures one window.
cell() {
  streams $3 || return 1
  # Slow start is over.
  sleep 0.3
  case $3 in
  r*) direction=tx ;;
  *) direction=rx ;;
  esac
  rc=0
  xen-window $1.$2.$3 w0 $direction 250 >/tmp/window || rc=1
  silence || rc=1
  # The result is printed immediately, because later steps may fail.
  [ $rc = 0 ] && echo "XTEST window $(cat /tmp/window)" >&3
  return $rc
}

# prepare: starts guests without an interface, and the server of the fetched file.
prepare() {
  for m in veth xen-netback; do insmod /mod/$m.ko || return 1; done
  truncate -s 16G /srv/zeros
  httpd -p 80 -h /srv
  for n in 2 3; do
    create guest$n pv "role=stream host=$n" 'tsc_mode="native"' || return 1
  done
  for n in 2 3; do
    within 120 grep -q "GUEST: READY" /var/log/xen/guest-guest$n.log || return 1
  done
}

# run COLUMN.WIRE.CELL…: measures these cells; starts the column if it is not running.
run() {
  words=$(echo $1 | tr . ' ')
  set -- $words
  column=$1 kind=$2
  shift 2
  if [ "$column" != "$there" ]; then
    [ -z "$there" ] || end $there || return 1
    there=
    begin $column || return 1
    there=$column
  fi
  wire $column $kind || return 1
  within 60 ping -c 1 -W 2 192.168.77.2 || return 1
  for c in $*; do
    cell $column $kind $c || return 1
  done
}

there=
groups=$(sed -n 's/.*xexp=\([^ ]*\).*/\1/p' /proc/cmdline | tr + ' ')
if [ -n "$groups" ]; then
  echo "XTEST run exp"
  echo 0 >/sys/bus/xen-backend/drivers_autoprobe
  rc=0
  exec 3>&1
  prepare >/tmp/exp.log 2>&1 || rc=1
  for group in $groups; do
    [ $rc = 0 ] || break
    echo "XTEST run $group"
    run $group >/tmp/exp.log 2>&1 || rc=1
  done
  if [ $rc = 0 ]; then
    echo "XTEST ok exp"
  else
    echo "XTEST fail exp $group"
    cat /tmp/exp.log
    xl list
    xenstore-ls -f /local/domain/0/backend/vif
    tail -n 20 /tmp/serve.log /var/log/xen/guest-*.log
  fi
fi
