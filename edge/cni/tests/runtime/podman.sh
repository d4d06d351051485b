#!/bin/sh
# Runs containers of podman 4 behind a machine.
. "$(dirname "$0")/common.sh"
export CONTAINERS_CONF="$w/containers.conf" CONTAINERS_STORAGE_CONF="$w/storage.conf"
leave() {
    podman rm -fa -t 0 >/dev/null 2>&1 || true
    "$grantway" down >/dev/null 2>&1 || true
    # Everything but control groups ends with these namespaces.
    find /sys/fs/cgroup -depth -path '*/libpod_parent*' -type d -exec rmdir {} + 2>/dev/null || true
}
trap leave EXIT

own /run/netns /var/lib/cni /dev/shm
for name in a b c; do
    for folder in bin etc proc sys dev tmp run root www; do mkdir -p "$w/$name/$folder"; done
    cp "$(command -v busybox)" "$w/$name/bin/busybox"
    echo "this is $name" >"$w/$name/www/index.html"
done

cat >"$w/machine.toml" <<END
[[nic]]
name = "host"
kind = "tap"
ifname = "gw-cni"
addresses = ["10.99.0.1/24"]
[driver]
restart_pause_ms = 20
END
cat >"$w/net.d/10-gwnet.conflist" <<END
{
  "cniVersion": "1.0.0",
  "cniVersions": ["0.4.0", "1.0.0", "1.1.0"],
  "name": "gwnet",
  "plugins": [
    {
      "type": "grantway-cni",
      "capabilities": { "ips": true, "mac": true },
      "socket": "$w/run/grantway.sock",
      "stateDir": "$w/state",
      "ipam": {
        "type": "host-local",
        "dataDir": "$w/leases",
        "ranges": [[{ "subnet": "10.99.0.0/24" }]],
        "routes": [{ "dst": "0.0.0.0/0" }]
      }
    },
    { "type": "portmap", "capabilities": { "portMappings": true } }
  ]
}
END
cat >"$CONTAINERS_CONF" <<END
[containers]
default_ulimits = ["nofile=1024:4096", "nproc=1024:4096"]
log_driver = "k8s-file"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
tmp_dir = "$w/podman/tmp"
volume_path = "$w/podman/volumes"
[network]
network_backend = "cni"
network_config_dir = "$w/net.d"
cni_plugin_dirs = ["$w/bin", "/usr/lib/cni", "/opt/cni/bin"]
END
cat >"$CONTAINERS_STORAGE_CONF" <<END
[storage]
driver = "vfs"
graphroot = "$w/podman/root"
runroot = "$w/podman/run"
END

# Starts a container with this name and these options, which serves a page.
start() {
    name=$1
    shift
    podman run -d --name "$name" --network gwnet "$@" --rootfs "$w/$name" \
        /bin/busybox httpd -f -p 80 -h /www
}
has_guests() { [ "$(guests)" = "$1" ]; }
leases() { ls "$w/leases/gwnet" | grep '^[0-9]' || true; }
has_leases() { [ "$(leases)" = "$1" ]; }
page_from() {
    printf 'GET / HTTP/1.0\r\n\r\n' |
        podman exec -i "$1" /bin/busybox nc -w 2 "$2" 80 | grep -qx "$3"
}

"$grantway" up "$w/machine.toml" >/dev/null 2>&1 &
eventually "$grantway" status

start a --ip 10.99.0.50 --mac-address 02:11:22:33:44:55 -p 8080:80 >/dev/null
start b >/dev/null
has_guests 2 || fail "two containers are not two guests"
podman exec a /bin/busybox ip link show eth0 | grep -q 02:11:22:33:44:55 || fail "wrong MAC"
b=$(podman inspect b --format '{{.NetworkSettings.Networks.gwnet.IPAddress}}')
eventually page 10.99.0.50 a
eventually page_from b 10.99.0.50 "this is a"
eventually page_from a "$b" "this is b"

eventually page 10.99.0.1:8080 a

# Sends 100 MB in each direction while the driver domain is killed ten times.
streams=
stream() {
    head -c 104857600 /dev/urandom >"$w/$1/sent"
    # The input never ends, because its end would end the stream.
    timeout 600 podman exec "$2" /bin/busybox sh -c 'mkfifo /f; nc -l -p 7000 <>/f >/got' &
    streams="$streams $!"
    timeout 600 podman exec "$1" /bin/busybox sh -c "
        until nc $3 7000 </sent; do sleep 0.1; done" 2>/dev/null &
    streams="$streams $!"
}
kill_driver() {
    pid=$("$grantway" status --json | sed 's/.*"name": *"driver"[^}]*"pid": *\([0-9]*\).*/\1/')
    [ "$pid" -gt 1 ] && kill -9 "$pid"
}
stream a b "$b"
stream b a 10.99.0.50
for _ in $(seq 10); do
    eventually kill_driver
    eventually "$grantway" stat driver
done
for pid in $streams; do wait "$pid" || fail "a stream broke"; done
cmp "$w/a/sent" "$w/b/got" || fail "b did not receive what a sent"
cmp "$w/b/sent" "$w/a/got" || fail "a did not receive what b sent"

podman stop -t 0 a >/dev/null
eventually has_guests 1
podman start a >/dev/null
has_guests 2 || fail "the container has no guest after a start"
eventually page_from b 10.99.0.50 "this is a"

# If a container's monitor is killed, podman cleans up in its next call.
podman run -d --name d --network gwnet --rootfs "$w/c" /bin/busybox sleep 1000000 >/dev/null
has_guests 3 || fail "the third container has no guest"
kill -9 "$(podman inspect d --format '{{.State.ConmonPid}}')"
podman rm -f -t 0 d >/dev/null
eventually has_guests 2
eventually page_from b 10.99.0.50 "this is a"

podman rm -f -t 0 b >/dev/null
eventually has_guests 1
eventually has_leases 10.99.0.50

# Without a machine, podman rejects new containers with the reason, and still removes containers.
"$grantway" down >/dev/null
said=$(start c 2>&1) && fail "a container started without a machine"
case $said in
*"no machine answers at $w/run/grantway.sock"*) ;;
*) fail "the reason is missing: $said" ;;
esac
podman rm -fa -t 0 >/dev/null
eventually has_leases ""
