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

echo '[driver]' >"$conf"
"$grantway" up --detach "$conf" >/dev/null
for n in $(seq 16); do
    ip netns add "c$n"
    "$grantway" attach "c$n" --netns "c$n" --ip "10.0.0.$n/24" >/dev/null
done
for n in $(seq 1 2 15); do
    ip netns exec "c$n" iperf3 --server --one-off --daemon
    until ip netns exec "c$n" ss -Hltn 'sport = :5201' | grep -q .; do sleep 0.1; done
    ip netns exec "c$((n + 1))" iperf3 --client "10.0.0.$n" --bidir --time 30 --bitrate 20M \
        >"$logs/$n" 2>&1 &
    echo $! >"$logs/$n.pid"
done
sleep 5
dpkg "$@" --install "$new" >"$logs/dpkg" 2>&1 || fail "$(cat "$logs/dpkg")"
for program in grantway-manager grantway-netd driver; do
    case $(file_of "$program") in
    "" | *deleted*) fail "$program is not the new one: $(file_of "$program")" ;;
    esac
done
case $(file_of grantwayd) in *deleted*) ;; *) fail "the core is another one" ;; esac
for n in $(seq 1 2 15); do
    kill -0 "$(cat "$logs/$n.pid")" || fail "a stream ended before: $(cat "$logs/$n")"
done
for n in $(seq 1 2 15); do
    wait "$(cat "$logs/$n.pid")" || fail "a stream has broken: $(cat "$logs/$n")"
    # Both ways, in each of the last ten seconds.
    lines=$(grep -E '\[(TX|RX)-C\] +[0-9.]+-[0-9.]+ +sec' "$logs/$n" | grep -vE 'sender|receiver')
    last=$(printf '%s\n' "$lines" | tail -n 20)
    case $last in *" 0.00 Bytes"*) fail "a stream stands still: $(cat "$logs/$n")" ;; esac
done
[ "$("$grantway" status --json | grep -o '"program": *"guest"' | wc -l)" = 16 ] ||
    fail "not all guests are there"
"$grantway" down >/dev/null
rm -r "$logs"
