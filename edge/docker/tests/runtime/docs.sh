#!/bin/sh
# Runs the commands of docs/docker.md, unchanged, on a new system. Only docker.io's images are
# missing: an image of the same name is created here.
. "$(dirname "$0")/../../../cni/tests/runtime/common.sh"
unset GRANTWAY_RUNTIME_DIR
top=$(cd "$(dirname "$0")/../../../.." && pwd)
export DOCKER_HOST="unix://$w/docker.sock" PATH="/usr/bin:$PATH" # The client of this Docker.
leave() {
    docker ps -aq 2>/dev/null | xargs -r docker rm -f >/dev/null 2>&1 || true
    "$grantway" down >/dev/null 2>&1 || true
    kill ${driver:-} ${dockerd:-} ${containerd:-} 2>/dev/null || true
    wait
    find /sys/fs/cgroup -depth -path '*/docker/*' -type d -exec rmdir {} + 2>/dev/null || true
}
trap leave EXIT

own /run/netns /run/docker /run/grantway /var/lib/cni /var/lib/grantway /dev/shm
mkdir -p "$w/image/bin" "$w/image/www" "$w/source/target"
cp "$(command -v busybox)" "$w/image/bin/busybox"
echo "a page of nginx" >"$w/image/www/index.html"

# The built source tree, with this build as the release.
for folder in contrib examples; do ln -s "$top/$folder" "$w/source/$folder"; done
ln -s "$(dirname "$grantway")" "$w/source/target/release"
cd "$w/source"
ip netns add far
ip link add eth0 type veth peer name eth0 netns far
ip -n far address add 192.0.2.1/24 dev eth0
ip -n far link set eth0 up
ip address add 192.0.2.2/24 dev eth0
ip link set eth0 up
ip route add default via 192.0.2.1

containerd --root "$w/containerd" --state "$w/containerd-state" --address "$w/containerd.sock" \
    >"$w/containerd.log" 2>&1 &
containerd=$!
dockerd --containerd "$w/containerd.sock" --data-root "$w/docker" --exec-root "$w/exec" \
    --pidfile "$w/docker.pid" --host "$DOCKER_HOST" --storage-driver vfs \
    --default-ulimit nofile=1024:4096 >"$w/dockerd.log" 2>&1 &
dockerd=$!
eventually docker version
tar -C "$w/image" -c . | docker import \
    --change 'CMD ["/bin/busybox", "httpd", "-f", "-p", "80", "-h", "/www"]' - nginx >/dev/null

# Block N of the page's first section.
block() {
    awk -v wanted="$1" '/^## / { on = /^## From nothing/ }
        on && /^ *```$/ { inside = 0 }
        inside && n == wanted
        on && /^ *```sh$/ { inside = 1; n++ }' "$top/docs/docker.md"
}
runs() {
    lines=$(block "$1")
    [ -n "$lines" ] || fail "docs/docker.md has no block $1"
    eval "$lines" >"$w/said" 2>&1 </dev/null || fail "$lines: $(cat "$w/said")"
}
has_guests() { [ "$(guests)" = "$1" ]; }
runs 1
runs 2
driver=$!
eventually test -S /run/docker/plugins/grantway.sock
runs 3
grep -q "a page of nginx" "$w/said" || fail "no page: $(cat "$w/said")"
ping() { docker run --rm --network front nginx /bin/busybox ping -c 1 -W 1 192.0.2.1; }
ping >/dev/null && fail "Docker allows forwarding: the page need not"
runs 4
eventually ping
runs 5
eventually has_guests 0
grantway stat --nonzero | grep -q 'out_packets' || fail "nothing passed the driver domain"
