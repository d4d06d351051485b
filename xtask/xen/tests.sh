# The tests of `cargo xtask xen`, run in dom0. A test is a function t_NAME; its status is the
# result. Tests run in the order of the list and keep their guests for later tests.

slow=$(sed -n 's/.*xslow=\([0-9]*\).*/\1/p' /proc/cmdline)
tests=$(sed -n 's/.*xtest=\([^ ]*\).*/\1/p' /proc/cmdline | tr + ' ')

# within SECONDS COMMAND…: repeats the command until it succeeds, for at most that time.
within() {
  left=$(($1 * slow * 2))
  shift
  until "$@" >/dev/null 2>&1; do
    left=$((left - 1))
    [ $left -gt 0 ] || { echo "timeout: $*"; return 1; }
    sleep 0.5
  done
}

# Starts the driver domain's process and restarts it whenever it ends. Its log is printed on the
# console.
serve() {
  [ -e /run/serving ] && return
  echo serving
  touch /run/serving
  (while [ -e /run/serving ]; do
    grantway xen /etc/grantway.toml >>/tmp/serve.log 2>&1 &
    echo $! >/run/serve.pid
    wait $!
    echo "ended: $?" >>/tmp/serve.log
    sleep 0.1
  done) &
  within 20 ip addr show dev gw0
  dd if=/dev/urandom of=/srv/rnd bs=64k count=16 2>/dev/null
  for i in $(seq 16); do cat /srv/rnd; done >/srv/big
  head -c 65536 /srv/rnd >/srv/small
  for file in rnd big small; do md5sum /srv/$file >/srv/$file.md5; done
  httpd -p 80 -h /srv
}

# create NAME TYPE KERNEL-ARGUMENT LINE…: creates a domain with additional lines in its
# configuration.
create() {
  cat >/etc/xen/$1.cfg <<EOC
name="$1"
type="$2"
kernel="/domu/vmlinux"
ramdisk="/domu/guest.img"
extra="console=hvc0 $3"
memory=${memory:-192}
on_crash="destroy"
EOC
  config=/etc/xen/$1.cfg
  shift 3
  printf '%s\n' "$@" >>$config
  xl create $unwatched $config
}

# vif NUMBER [BACKEND]: prints the configuration line of a guest's interface.
vif() { printf 'vif=["mac=00:16:3e:00:00:%02d,script=vif-none%s"]\n' $1 "$2"; }

# guest NAME TYPE NUMBER [BACKEND [CPUS]]: creates a stock guest whose addresses end with NUMBER.
guest() {
  echo "creating $1"
  # The log of an earlier domain of this name has a READY line, too.
  rm -f /var/log/xen/guest-$1.log
  create $1 $2 host=$3 "$(vif $3 $4)" vcpus=${5:-1} || return 1
  echo "created $1"
  within 60 grep -q "GUEST: READY" /var/log/xen/guest-$1.log
}

pv() { xl domid pv1 >/dev/null 2>&1 || { serve && guest pv1 pv 2; }; }
pvh() { xl domid pvh1 >/dev/null 2>&1 || { serve && guest pvh1 pvh 3; }; }

# fetch URL: downloads a file and compares it with the checksum in URL.md5.
fetch() {
  rm -f /tmp/got
  timeout $((60 * slow)) wget -q -O /tmp/got "$1" || { echo "download of $1 failed"; return 1; }
  sum=$(timeout $((20 * slow)) wget -q -O - "$1.md5" | cut -d' ' -f1)
  [ -n "$sum" ] && [ "$(md5sum </tmp/got | cut -d' ' -f1)" = "$sum" ] || {
    echo "$1: wrong checksum"
    return 1
  }
}

# on NUMBER COMMAND: runs the command in a guest, over one connection.
on() {
  query=$(echo "$2" | sed 's/ /%20/g')
  rm -f /tmp/did
  timeout $((90 * slow)) wget -q -O /tmp/did "http://192.168.77.$1/cgi-bin/do?$query"
  grep -q "STATUS 0" /tmp/did || { echo "guest $1: $2:"; cat /tmp/did; return 1; }
}

# upload NUMBER FILE: the guest downloads the file from dom0, and the checksum is compared.
upload() {
  on $1 "wget -q -O /tmp/up http://192.168.77.1/$2 && md5sum /tmp/up" || return 1
  [ "$(head -1 /tmp/did | cut -d' ' -f1)" = "$(cut -d' ' -f1 /srv/$2.md5)" ] || {
    echo "$2: wrong checksum in the guest"
    return 1
  }
}

reaches() {
  within 20 ping -c 1 -W 2 192.168.77.$1 &&
    within 20 ping -6 -c 1 -W 2 fd77::$1 &&
    fetch http://192.168.77.$1/rnd &&
    fetch "http://[fd77::$1]:81/rnd" &&
    upload $1 rnd
}

t_boot() { xl list; }
t_pv() { pv && reaches 2; }
t_pvh() { pvh && reaches 3; }

t_pair() {
  pv && pvh && on 2 'ping -c 2 192.168.77.3' && on 3 'wget -q -O /tmp/pair http://192.168.77.2/rnd'
}

# stream NUMBER FILE SUM: dom0 downloads a large file from the guest and compares its checksum.
stream() {
  timeout $((90 * slow)) wget -q -O $2 http://192.168.77.$1/big || {
    echo "the stream broke"
    return 1
  }
  [ "$(md5sum <$2 | cut -d' ' -f1)" = $3 ] || { echo "the stream has a wrong checksum"; return 1; }
}

t_tools() {
  pv || return 1
  grantway status && grantway stat driver --nonzero >/tmp/stat || return 1
  for counted in vif.$(xl domid pv1).0 hypercalls.copy.calls hypercalls.notify.calls; do
    grep -q "$counted" /tmp/stat || { cat /tmp/stat; return 1; }
  done
  ping -i 0.2 192.168.77.2 >/dev/null 2>&1 &
  pinging=$!
  grantway trace --wait $((10 * slow)) >/tmp/trace
  rc=$?
  kill $pinging
  cat /tmp/trace
  [ $rc = 0 ] && grep -q "vif.$(xl domid pv1).0" /tmp/trace
}

# connected NUMBER COUNT: dom0 has at least COUNT connections to the guest's server.
connected() { [ $(netstat -tn | grep "192.168.77.$1:80 " | grep -c ESTABLISHED) -ge $2 ]; }

# followed PID: another process has replaced this one, and the wire exists again.
followed() {
  [ "$(cat /run/serve.pid)" != $1 ] && ip addr show dev gw0 | grep -q 192.168.77.1
}

# ports FRONTEND: prints its rings and event channels, two of each per queue.
ports() { xenstore-ls $1 | grep -E "(tx|rx)-ring-ref|event-channel-(tx|rx)"; }

# mapped DOMAIN: prints how many of its grants are in use, according to Xen.
mapped() {
  xl dmesg -c >/dev/null
  xl debug-keys g
  xl dmesg | awk -v whose="d$1" '
    /grant-table for remote/ { is_its = index($0, "remote " whose " ") }
    is_its && /\[0x/ { count++ }
    END { print count + 0 }'
}

# maps DOMAIN COUNT: exactly COUNT of its grants are in use.
maps() { [ "$(mapped $1)" = $2 ]; }

# maps_only DOMAIN COUNT: waits until exactly COUNT of its grants are in use.
maps_only() {
  within 20 maps $1 $2 || { echo "$(mapped $1) of its grants are in use instead of $2"; return 1; }
}

# kill_under GUEST NUMBER TIMES [each]: kills the process repeatedly during streams in both
# directions. Both streams must be complete, the guest must not reconnect, and afterwards the same
# number of grants must be in use as before. "each": the grants are checked after each kill; this is
# possible because grants are copied, so none is in use during transfers.
kill_under() {
  id=$(xl domid $1)
  front=/local/domain/$id/device/vif/0
  held=$(mapped $id)
  # At least the grants of its rings are in use.
  [ $held -gt 0 ] || { echo "according to Xen, no grant of the guest is in use"; return 1; }
  before="$(ports $front)"
  shift
  [ -n "$before" ] || { echo "the guest has no event channels"; return 1; }
  ended=$(grep -c "ended: 137" /tmp/serve.log)
  sum=$(wget -q -O - http://192.168.77.$1/big.md5 | cut -d' ' -f1)
  killed=0
  rounds=0
  while [ $killed -lt $2 ]; do
    rounds=$((rounds + 1))
    [ $rounds -le $((2 * $2)) ] || { echo "killed $killed times in $rounds rounds"; return 1; }
    stream $1 /tmp/down $sum >/tmp/kill.down 2>&1 &
    down=$!
    upload $1 big >/tmp/kill.up 2>&1 &
    up=$!
    within 5 connected $1 2
    while [ $killed -lt $2 ] && { kill -0 $down || kill -0 $up; } 2>/dev/null; do
      pid=$(cat /run/serve.pid)
      kill -9 $pid
      killed=$((killed + 1))
      within 20 followed $pid || return 1
      [ -z "$3" ] || maps_only $id $held || return 1
      sleep 0.3
    done
    wait $down || { cat /tmp/kill.down; return 1; }
    wait $up || { cat /tmp/kill.up; return 1; }
    maps_only $id $held || return 1
  done
  ended=$(($(grep -c "ended: 137" /tmp/serve.log) - ended))
  echo "killed $killed times, ended $ended times"
  [ $ended -eq $2 ] || return 1
  [ "$(ports $front)" = "$before" ] || {
    echo "the guest has reconnected"
    return 1
  }
}

t_kill() { pv && kill_under pv1 2 5 each; }
t_kills() { pv && kill_under pv1 2 100 each; }

# A guest with four CPUs has one queue per CPU.
t_queues() {
  serve && guest mq pv 6 "" 4 && reaches 6 || return 1
  id=$(xl domid mq)
  [ "$(ports /local/domain/$id/device/vif/0 | wc -l)" = 16 ] || {
    xenstore-ls /local/domain/$id/device/vif/0
    return 1
  }
  kill_under mq 6 2 && xl destroy mq && within 20 clean 0 $id
}

# clean BACKEND DOMAIN: the backend's part of the xenstore has no interface of the domain.
clean() { [ -z "$(xenstore-list /local/domain/$1/backend/vif/$2 2>/dev/null)" ]; }

t_detach() {
  pv || return 1
  id=$(xl domid pv1)
  ping -i 0.2 192.168.77.2 >/dev/null 2>&1 &
  pinging=$!
  xl network-detach pv1 0 && within 10 clean 0 $id &&
    xl network-attach pv1 mac=00:16:3e:00:00:02 script=vif-none &&
    within 10 xenstore-exists /local/domain/$id/device/vif/0/tx-ring-ref && reaches 2
  rc=$?
  kill $pinging
  return $rc
}

# A guest is saved and continues; then it is saved, destroyed and restored.
t_save() {
  pv || return 1
  id=$(xl domid pv1)
  xl save -c pv1 /tmp/pv1.save && reaches 2 || return 1
  xl save pv1 /tmp/pv1.save && within 20 clean 0 $id || return 1
  xl restore /tmp/pv1.save || return 1
  rm /tmp/pv1.save
  [ $(xl domid pv1) != $id ] && reaches 2
}

# state_of NODE STATE…: a backend or frontend is in one of these states; "": it does not exist.
state_of() {
  found=$(xenstore-read $1/state 2>/dev/null)
  shift
  for state in "$@"; do [ "$found" = "$state" ] && return; done
  return 1
}

# Toolstacks are killed during an operation, and the next one completes it.
t_toolstack() {
  serve && guest tools pv 7 || return 1
  id=$(xl domid tools)
  back=/local/domain/0/backend/vif/$id/0
  # No process of xl monitors guests any more.
  killall -9 xl
  reaches 7 || return 1
  # The first sets the interface offline and ends before it has removed a node.
  xenstore-write $back/online 0
  within 20 state_of $back 6 || return 1
  xl network-detach tools 0 && within 20 clean 0 $id || return 1
  # The second is killed while it waits for the backend.
  xl network-attach tools mac=00:16:3e:00:00:07 script=vif-none || return 1
  device=$(xenstore-list /local/domain/$id/device/vif)
  within 20 state_of /local/domain/$id/device/vif/$device 4 && reaches 7 || return 1
  xl network-detach tools $device &
  detaching=$!
  within 20 state_of /local/domain/0/backend/vif/$id/$device 6 "" || return 1
  kill -9 $detaching 2>/dev/null
  wait $detaching
  xl network-detach tools $device 2>/dev/null
  within 20 clean 0 $id && xl destroy tools && within 20 clean 0 $id
}

# Sixteen guests at once. Each is pinged and transfers 64 KB with a checksum in both directions. No
# xl process remains per guest, because each would keep the memory of the kernel image.
t_many() {
  serve || return 1
  numbers=$(seq 21 36)
  for n in $numbers; do
    memory=128 unwatched=-e create many$n pv "role=small host=$n" "$(vif $n)" || return 1
    echo "created $n at $(cut -d. -f1 /proc/uptime) s"
  done
  for n in $numbers; do
    within 240 grep -q "GUEST: READY" /var/log/xen/guest-many$n.log || return 1
  done
  for n in $numbers; do
    within 20 ping -c 1 -W 2 192.168.77.$n && fetch http://192.168.77.$n/rnd && upload $n small ||
      return 1
    echo "guest $n"
  done
  on 21 'wget -q -O /tmp/pair http://192.168.77.36/rnd' || return 1
  xl list
  for n in $numbers; do
    id=$(xl domid many$n)
    xl destroy many$n && within 20 clean 0 $id || return 1
  done
}

# A guest without a netfront attacks, while another one receives streams: no stream breaks, and the
# process continues.
t_hostile() {
  pv || return 1
  pid=$(cat /run/serve.pid)
  log=/var/log/xen/guest-bad.log
  # Continuous broadcasts to all guests.
  ping 192.168.77.99 >/dev/null 2>&1 &
  pinging=$!
  # A multicast group that the guest may join.
  ip route add 239.0.0.0/8 dev gw0 2>/dev/null
  ping 239.1.2.3 >/dev/null 2>&1 &
  multicast=$!
  create bad pv role=hostile "$(vif 9)" || return 1
  rc=0
  until grep -qE "HOSTILE (done|fail)" $log; do
    fetch http://192.168.77.2/rnd || { rc=1; break; }
  done
  kill $pinging $multicast
  cat $log
  [ $rc = 0 ] && grep -q "HOSTILE done" $log || return 1
  [ "$(cat /run/serve.pid)" = $pid ] && kill -0 $pid || { echo "the process has ended"; return 1; }
  id=$(xl domid bad)
  xl destroy bad && within 20 clean 0 $id
}

# follows: kills the process; the next one reads the configuration again.
follows() {
  pid=$(cat /run/serve.pid)
  kill -9 $pid
  within 20 followed $pid
}

# reached MECHANISM: selects how the next process accesses pages of guests.
reached() {
  sed -i "s/^grants = .*/grants = \"$1\"/" /etc/grantway.toml
  follows
}

# operations KIND: prints how many operations of this kind the process has requested from Xen.
operations() {
  grantway stat driver | sed -n "s/.*hypercalls\.$1\.operations[^0-9]*\([0-9]*\).*/\1/p"
}

# Sent packets are mapped: two guests, attacks, kills. No page may stay mapped after its response: a
# netfront would report this and disable itself.
t_maps() {
  pv && pvh && reached map || return 1
  reaches 2 && on 3 'wget -q -O /tmp/pair http://192.168.77.2/rnd'
  rc=$?
  # The rings account for only a few pages.
  mapped=$(operations map)
  [ $rc = 0 ] && [ "$mapped" -gt 100 ] && [ "$(operations unmap)" -gt 100 ] || {
    echo "mapped: $mapped"
    rc=1
  }
  [ $rc = 0 ] && t_hostile && kill_under pv1 2 5 || rc=1
  if grep -iE "still in use|disabled for further use" /var/log/xen/guest-p*.log; then rc=1; fi
  reached copy && [ $rc = 0 ]
}

# on_wire COUNTER: prints this counter of the NIC w0.
on_wire() {
  grantway stat driver | sed -n "s/.*nic\.w0\.traffic\.$1[^0-9]*\([0-9]*\).*/\1/p"
}

# wired KIND LINE: adds a second NIC of this kind with that configuration line; a guest must reach
# the station behind the machine's NIC.
wired() {
  pv || return 1
  cp /etc/grantway.toml /tmp/before.toml
  printf '%s\n' "[[nic]]" 'name = "w0"' "kind = \"$1\"" "$2" >>/etc/grantway.toml
  follows && on 2 'ip addr replace 10.0.2.15/24 dev eth0; ping -c 3 -s 1200 10.0.2.2'
  rc=$?
  grantway stat driver --nonzero | grep -F nic.w0
  [ $rc = 0 ] && [ $(on_wire in_packets) -ge 3 ] && [ $(on_wire out_packets) -ge 3 ] || rc=1
  cp /tmp/before.toml /etc/grantway.toml
  follows && [ $rc = 0 ]
}

# nic: brings the machine's NIC up.
nic() {
  [ -e /sys/class/net/eth0 ] || insmod /mod/e1000.ko || return 1
  within 10 ip link set eth0 up
}

t_uplink() {
  nic && brctl addbr br1 && brctl addif br1 eth0 && ip link set br1 up || return 1
  wired tap 'uplink = "br1"'
  rc=$?
  ip link set br1 down && brctl delbr br1 && return $rc
}

t_xdp() { nic && wired xdp 'netdev = "eth0"'; }

t_destroy() {
  pv && pvh || return 1
  for guest in pv1 pvh1; do
    id=$(xl domid $guest)
    xl destroy $guest && within 20 clean 0 $id || return 1
  done
  # The process must have survived all tests.
  grep "ended: " /tmp/serve.log | grep -v "ended: 137" && return 1
  kill -0 $(cat /run/serve.pid)
}

t_driver() {
  create drv pv role=driver driver_domain=1 || return 1
  within 30 grep -q "GUEST: driver domain" /var/log/xen/guest-drv.log || return 1
  guest far pv 5 ,backend=drv || return 1
  cat /var/log/xen/guest-far.log
  within 60 grep -q "GUEST: PING" /var/log/xen/guest-far.log || return 1
  id=$(xl domid far)
  xl destroy far && within 20 clean $(xl domid drv) $id && xl destroy drv
}

touch /tmp/serve.log
tail -f /tmp/serve.log | sed 's/^/serve: /' &
for name in $tests; do
  echo "XTEST run $name"
  touch /tmp/$name.log
  tail -f /tmp/$name.log | sed 's/^/| /' &
  begun=$(cut -d. -f1 /proc/uptime)
  if t_$name >/tmp/$name.log 2>&1; then
    echo "XTEST ok $name $(($(cut -d. -f1 /proc/uptime) - begun)) s"
  else
    echo "XTEST fail $name $(tail -1 /tmp/$name.log)"
    xl list
    xenstore-ls -f /local/domain/0/backend/vif
    tail -n 20 /var/log/xen/guest-*.log
  fi
done
