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
iptables -F DOCKER-USER # As after a reboot.
ping >/dev/null && fail "the rules are still in force"
unit=$(sed -n 's/^ *ExecStartPost=//p' "$top/docs/docker.md")
[ -n "$unit" ] || fail "docs/docker.md does not keep the rules"
eval "$unit"
eventually ping
runs 5
eventually has_guests 0

# The networks of the page's compose file, as arguments of `docker network create`.
compose_networks() {
    awk '/^```/ { inside = /yaml$/; next }
        inside && /^[a-z]/ { part = $1; next }
        !inside || part != "networks:" { next }
        /^  [a-z]+:$/ { if (name) print options, name; sub(":", "", $1); name = $1; options = "" }
        /^    / {
            gsub(/[]["{},]/, " ")
            $0 = $0
            if ($1 == "driver:") options = options " -d " $2
            else if ($1 == "internal:" && $2 == "true") options = options " --internal"
            else if ($1 == "driver_opts:" && NF == 3) options = options " -o " $2 "=" $3
            else if ($1 == "ipam:" && $3 == "subnet:") options = options " --subnet " $4
            else options = options " --unknown-" $1
            gsub(":=", "=", options)
        }
        END { print options, name }' "$top/docs/docker.md"
}
[ "$(compose_networks | wc -l)" = 2 ] || fail "other networks: $(compose_networks)"
compose_networks | while read -r line; do
    # Separate words.
    # shellcheck disable=SC2086
    docker network create $line >/dev/null
done
docker run -d --name db --network back nginx >/dev/null
docker run -d --name web --network front -p 8080:80 nginx >/dev/null
docker network connect back web
eventually has_guests 3
page_at() { "$@" | grep -qx "a page of nginx"; }
eventually page_at curl -s http://10.89.7.1:8080/
in_db() { docker exec db /bin/busybox "$@"; }
# `web` by its address in the common network.
web() { in_db nslookup web 127.0.0.11 | awk '/^Address/ { last = $NF } END { print last }'; }
case $(web) in
10.89.8.*) ;;
*) fail "db finds web at $(web)" ;;
esac
eventually page_at in_db wget -qO- "http://$(web)/"
in_db ip route | grep default && fail "an internal network has a default route"
in_db ping -c 1 -W 1 192.0.2.1 >/dev/null 2>&1 && fail "an internal network leads outside"
docker rm -f web db >/dev/null
docker network rm front back >/dev/null
eventually has_guests 0
grantway stat --nonzero | grep -q 'out_packets' || fail "nothing passed the driver domain"
