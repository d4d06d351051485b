#!/bin/sh
# The package is upgraded while its programs carry streams of 16 attached guests: `upgrade.sh ROOT
# NEW OPTION…`, in namespaces of mounts, networks and processes of its own. ROOT has the package
# installed, NEW is the next one, and the options are dpkg's for that root. Says what is not as it
# has to be.
set -eu
root=$1 new=$2
shift 2
export GRANTWAY_RUNTIME_DIR="$root/run/grantway"
grantway=$root/usr/bin/grantway
conf=$root/etc/grantway/grantway.conf
logs=$root/run/streams

fail() {
    echo "upgrade.sh: $*" >&2
    exit 1
}
eventually() {
    for _ in $(seq 1200); do
        if "$@"; then return; fi
        sleep 0.1
    done
    fail "not within two minutes: $*"
}
mount -t tmpfs tmpfs /run
mkdir /run/netns
mkdir -p "$logs"
ip link set lo up

# Which file a program of the machine runs; what was replaced is told as deleted.
file_of() {
    for exe in /proc/[0-9]*/exe; do
        case $(readlink "$exe" || true) in */"$1" | */"$1 (deleted)") readlink "$exe" ;; esac
    done
}

listens() { ip netns exec "c$1" ss -Hltn 'sport = :5201' | grep -q .; }
# Seconds in which the stream N carried something in the direction WAY, TX or RX.
carried() {
    grep -cE "\[$2-C\] +[0-9.]+-[0-9.]+ +sec +[0-9.]*[1-9][0-9.]* +[KMG]?Bytes" "$logs/$1" || true
}
goes_on() {
    kill -0 "$(cat "$logs/$1.pid")" || fail "a stream has broken: $(cat "$logs/$1")"
    [ "$(carried "$1" "$2")" -ge "$3" ]
}
# Each stream, both ways.
all_go_on() {
    for n in $(seq 1 2 15); do
        for way in TX RX; do eventually goes_on "$n" "$way" "$(($(carried "$n" "$way") + 3))"; done
    done
}

echo '[driver]' >"$conf"
"$grantway" up --detach "$conf" >/dev/null
for n in $(seq 16); do
    ip netns add "c$n"
    "$grantway" attach "c$n" --netns "c$n" --ip "10.0.0.$n/24" >/dev/null
done
for n in $(seq 1 2 15); do
    ip netns exec "c$n" iperf3 --server --one-off --daemon
    eventually listens "$n"
    ip netns exec "c$((n + 1))" iperf3 --client "10.0.0.$n" --bidir --time 3600 --bitrate 20M \
        --forceflush >"$logs/$n" 2>&1 &
    echo $! >"$logs/$n.pid"
done
all_go_on
dpkg "$@" --install "$new" >"$logs/dpkg" 2>&1 || fail "$(cat "$logs/dpkg")"
for program in grantway-manager grantway-netd driver; do
    case $(file_of "$program") in
    "" | *deleted*) fail "$program is not the new one: $(file_of "$program")" ;;
    esac
done
case $(file_of grantwayd) in *deleted*) ;; *) fail "the core is another one" ;; esac
all_go_on
for n in $(seq 1 2 15); do
    kill "$(cat "$logs/$n.pid")" || fail "a stream has broken: $(cat "$logs/$n")"
done
[ "$("$grantway" status --json | grep -o '"program": *"guest"' | wc -l)" = 16 ] ||
    fail "not all guests are there"
"$grantway" down >/dev/null
rm -r "$logs"
