# Common part of the scripts, which run as `NAME.sh GRANTWAY PLUGIN FOLDER` in new mount and network
# namespaces, so that they do not change the system.
set -eu
grantway=$1 plugin=$2 w=$3
export GRANTWAY_RUNTIME_DIR="$w/run"

fail() {
    echo "${0##*/}: $*" >&2
    exit 1
}
eventually() {
    for _ in $(seq 1200); do
        if "$@" >/dev/null 2>&1; then return; fi
        sleep 0.1
    done
    fail "not within two minutes: $*"
}
# Hides the system's folders behind empty ones.
own() {
    for folder in "$@"; do
        mkdir -p "$folder"
        mount -t tmpfs -o mode=755 tmpfs "$folder"
    done
}
guests() { "$grantway" status --json | grep -o '"program": *"guest"' | wc -l; }
page() { [ "$(curl -s --max-time 2 "http://$1/")" = "this is $2" ]; }

ip link set lo up
mkdir "$w/bin" "$w/net.d"
cp "$plugin" "$w/bin/"
