#!/bin/sh
# Upgrades the package while its programs carry streams of 16 attached guests: `upgrade.sh ROOT NEXT
# FOREIGN OPTION…`, in separate mount, network and PID namespaces. The package is installed in ROOT;
# NEXT is the next version, FOREIGN is a version whose programs need another core. The options are
# dpkg's for that root. Prints the first failed check.
#
# Three machines run: the machine of ROOT's service, in the foreground like a service, with the
# streams; `other`, also ROOT's, which is detached; and `elsewhere`, whose sockets are in the
# running system's directory. The upgrade must not change `elsewhere` or the system's services.
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
    fail "not true within two minutes: $*"
}
mount -t tmpfs tmpfs /run
mkdir -p /run/netns /run/systemd/system
mkdir -p "$logs/bin"
ip link set lo up
# Calls that would affect the running system's services are recorded.
for name in systemctl deb-systemd-invoke; do
    printf '#!/bin/sh\necho %s "$@" >>%s\n' "$name" "$logs/called" >"$logs/bin/$name"
    chmod +x "$logs/bin/$name"
done
PATH=$logs/bin:$PATH

# Prints the core of the machine $2 whose socket is in the folder $1; processes_of: also its child
# processes.
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
    [ -n "$core" ] || fail "$2 has no core"
    echo "$core"
    cat "/proc/$core/task"/*/children
}
# Prints the executable of program $3 of this machine; a replaced file is marked as deleted.
file_of() {
    for process in $(processes_of "$1" "$2"); do
        file=$(readlink "/proc/$process/exe" || true)
        case $file in */"$3" | */"$3 (deleted)") echo "$file" ;; esac
    done
}
is_new() {
    case $(file_of "$1" "$2" "$3") in
    "" | *deleted*) fail "$2: $3 was not replaced: $(file_of "$1" "$2" "$3")" ;;
    esac
}
is_as_it_was() {
    case $(file_of "$1" "$2" "$3") in
    *deleted*) ;;
    *) fail "$2: $3 was replaced" ;;
    esac
}
is_up() { "$grantway" status 2>"$logs/status" >&2; }
begun_again() { grep -c 'the manager was started again' "$own/$1.log" || true; }

listens() { ip netns exec "c$1" ss -Hltn 'sport = :5201' | grep -q .; }
# Prints the number of seconds in which stream $1 carried data in direction $2 (TX or RX).
carried() {
    grep -cE "\[$2-C\] +[0-9.]+-[0-9.]+ +sec +[0-9.]*[1-9][0-9.]* +[KMG]?Bytes" "$logs/$1" || true
}
goes_on() {
    kill -0 "$(cat "$logs/$1.pid")" || fail "a stream broke: $(cat "$logs/$1")"
    [ "$(carried "$1" "$2")" -ge "$3" ]
}
# Waits until each stream has carried data in both directions in three more seconds.
all_continue() {
    wanted=
    for n in $(seq 1 2 15); do
        for way in TX RX; do wanted="$wanted $n $way $(($(carried "$n" "$way") + 3))"; done
    done
    # shellcheck disable=SC2086 # Three words a stream and direction.
    set -- $wanted
    while [ $# -gt 0 ]; do
        eventually goes_on "$1" "$2" "$3"
        shift 3
    done
}
# Installs package $1 by dpkg with the given options.
install() {
    package=$1
    shift
    dpkg "$@" --install "$package" >"$logs/dpkg" 2>&1 || fail "$(cat "$logs/dpkg")"
    sed -n '/the installed programs/p' "$logs/dpkg"
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
all_continue

install "$next" "$@"
for machine in grantway other; do
    for program in grantway-manager grantway-netd driver; do
        is_new "$own" "$machine" "$program"
    done
    is_as_it_was "$own" "$machine" grantwayd
    [ "$(begun_again "$machine")" = 1 ] || fail "$machine: its manager was not restarted once"
done
all_continue

install "$foreign" "$@"
for program in grantwayd grantway-manager grantway-netd driver guest; do
    is_new "$own" grantway "$program"
done
grep -q 'other: .* and no `grantway up` in the foreground' "$logs/dpkg" ||
    fail "$(cat "$logs/dpkg")"
for program in grantwayd grantway-manager grantway-netd driver; do
    is_as_it_was "$own" other "$program"
done
all_continue

for program in grantwayd grantway-manager grantway-netd driver; do
    is_as_it_was /run/grantway elsewhere "$program"
done
[ ! -e "$logs/called" ] || fail "the system's services were called: $(cat "$logs/called")"
for n in $(seq 1 2 15); do
    kill "$(cat "$logs/$n.pid")" || fail "a stream broke: $(cat "$logs/$n")"
done
[ "$("$grantway" status --json | grep -o '"program": *"guest"' | wc -l)" = 16 ] ||
    fail "guests are missing"
"$grantway" down >/dev/null
"$grantway" down --name other >/dev/null
GRANTWAY_RUNTIME_DIR=/run/grantway "$grantway" down --name elsewhere >/dev/null
rm -r "$logs"
