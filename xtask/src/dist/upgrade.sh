#!/bin/sh
# The package is upgraded while its programs carry streams of 16 attached guests: `upgrade.sh ROOT
# NEXT FOREIGN OPTION…`, in namespaces of mounts, networks and processes of its own. ROOT has the
# package installed, NEXT is the next one, FOREIGN one whose programs need another core, and the
# options are dpkg's for that root. Says what is not as it has to be.
#
# Three machines run: that of ROOT's service, in the foreground as a service is, with the streams;
# `other`, also ROOT's, which nobody stays for; `elsewhere`, whose sockets lie where the running
# system has them: nobody may touch it, as nobody may touch the system's services.
set -eu
root=$1 next=$2 foreign=$3
shift 3
own=$root/run/grantway
export GRANTWAY_RUNTIME_DIR="$own"
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
mkdir -p /run/netns /run/systemd/system
mkdir -p "$logs/bin"
ip link set lo up
# What asks the running system's services to do something says so.
for name in systemctl deb-systemd-invoke; do
    printf '#!/bin/sh\necho %s "$@" >>%s\n' "$name" "$logs/called" >"$logs/bin/$name"
    chmod +x "$logs/bin/$name"
done
PATH=$logs/bin:$PATH

# The core of the machine $2 whose socket lies in the folder $1, and its processes.
core_of() {
    for process in /proc/[0-9]*; do
        case $(readlink "$process/exe" || true) in
        */grantwayd | *"/grantwayd (deleted)") ;;
        *) continue ;;
        esac
        case $(tr '\0' ' ' <"$process/cmdline" || true) in
        *"--socket $1/$2.sock "*) echo "${process#/proc/}" ;;
        esac
    done
}
processes_of() {
    core=$(core_of "$1" "$2")
    [ -n "$core" ] || fail "no core of $2"
    echo "$core"
    cat "/proc/$core/task"/*/children
}
# Which file PROGRAM of this machine is; what was replaced is told as deleted.
file_of() {
    for process in $(processes_of "$1" "$2"); do
        file=$(readlink "/proc/$process/exe" || true)
        case $file in */"$3" | */"$3 (deleted)") echo "$file" ;; esac
    done
}
is_new() {
    case $(file_of "$1" "$2" "$3") in
    "" | *deleted*) fail "$2: $3 is not the new one: $(file_of "$1" "$2" "$3")" ;;
    esac
}
is_as_it_was() {
    case $(file_of "$1" "$2" "$3") in
    *deleted*) ;;
    *) fail "$2: $3 is another one" ;;
    esac
}
is_up() { "$grantway" status 2>"$logs/status" >&2; }
begun_again() { grep -c 'the manager was started again' "$own/$1.log" || true; }

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
# By dpkg with these options.
install() {
    package=$1
    shift
    dpkg "$@" --install "$package" >"$logs/dpkg" 2>&1 || fail "$(cat "$logs/dpkg")"
    sed -n '/again with\|goes on with/p' "$logs/dpkg"
}

echo '[driver]' >"$conf"
"$grantway" up "$conf" >"$logs/up" 2>&1 &
"$grantway" up --detach --name other "$conf" >/dev/null
GRANTWAY_RUNTIME_DIR=/run/grantway "$grantway" up --detach --name elsewhere "$conf" >/dev/null
eventually is_up
for n in $(seq 16); do
    ip netns add "c$n"
    cat >"$logs/guest.toml" <<END
[[vif]]
endpoint = "tap"
netns = "c$n"
addresses = ["10.0.0.$n/24"]
persistent = true
END
    "$grantway" attach "c$n" --file "$logs/guest.toml" >/dev/null
done
for n in $(seq 1 2 15); do
    ip netns exec "c$n" iperf3 --server --one-off --daemon
    eventually listens "$n"
    ip netns exec "c$((n + 1))" iperf3 --client "10.0.0.$n" --bidir --time 3600 --bitrate 20M \
        --forceflush >"$logs/$n" 2>&1 &
    echo $! >"$logs/$n.pid"
done
all_go_on

install "$next" "$@"
for machine in grantway other; do
    for program in grantway-manager grantway-netd driver; do
        is_new "$own" "$machine" "$program"
    done
    is_as_it_was "$own" "$machine" grantwayd
    [ "$(begun_again "$machine")" = 1 ] || fail "$machine: not upgraded once"
done
all_go_on

install "$foreign" "$@"
for program in grantwayd grantway-manager grantway-netd driver guest; do
    is_new "$own" grantway "$program"
done
grep -q 'other: .* and no `grantway up` in the foreground' "$logs/dpkg" ||
    fail "$(cat "$logs/dpkg")"
for program in grantwayd grantway-manager grantway-netd driver; do
    is_as_it_was "$own" other "$program"
done
all_go_on

for program in grantwayd grantway-manager grantway-netd driver; do
    is_as_it_was /run/grantway elsewhere "$program"
done
[ ! -e "$logs/called" ] || fail "the system's services: $(cat "$logs/called")"
for n in $(seq 1 2 15); do
    kill "$(cat "$logs/$n.pid")" || fail "a stream has broken: $(cat "$logs/$n")"
done
[ "$("$grantway" status --json | grep -o '"program": *"guest"' | wc -l)" = 16 ] ||
    fail "not all guests are there"
"$grantway" down >/dev/null
"$grantway" down --name other >/dev/null
GRANTWAY_RUNTIME_DIR=/run/grantway "$grantway" down --name elsewhere >/dev/null
rm -r "$logs"
