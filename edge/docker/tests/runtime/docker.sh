#!/bin/sh
# Runs containers of Docker behind a machine.
. "$(dirname "$0")/../../../cni/tests/runtime/common.sh"
top=$(cd "$(dirname "$0")/../../../.." && pwd)
export DOCKER_HOST="unix://$w/docker.sock" PATH="/usr/bin:$PATH" # The client of this Docker.
leave() {
    docker ps -aq 2>/dev/null | xargs -r docker rm -f >/dev/null 2>&1 || true
    "$grantway" down >/dev/null 2>&1 || true
    kill ${dockerd:-} ${driver:-} ${containerd:-} 2>/dev/null || true
    wait
    # Only control groups outlive these namespaces.
    find /sys/fs/cgroup -depth -path '*/docker/*' -type d -exec rmdir {} + 2>/dev/null || true
}
trap leave EXIT

own /run/netns /run/docker /var/lib/cni /dev/shm
mkdir -p "$w/image/bin" "$w/image/www" "$w/state"
cp "$(command -v busybox)" "$w/image/bin/busybox"
for name in httpd ip nc nslookup ping sh; do
    ln -s busybox "$w/image/bin/$name"
done

cat >"$w/machine.toml" <<END
[[nic]]
name = "host"
kind = "tap"
ifname = "gw-docker"
addresses = ["10.99.0.1/24", "10.98.0.1/24"]
[driver]
restart_pause_ms = 20
END
machine() {
    "$grantway" up "$w/machine.toml" >>"$w/machine.log" 2>&1 &
    eventually "$grantway" status
}
driver() {
    GRANTWAY_RUNTIME_DIR="$w/run" "$plugin" --socket /run/docker/plugins/grantway.sock \
        --state "$w/state" --run "$w/run-docker" 2>>"$w/driver.log" &
    driver=$!
    eventually test -S /run/docker/plugins/grantway.sock
}
dockerd() {
    command dockerd --containerd "$w/containerd.sock" --data-root "$w/docker" \
        --exec-root "$w/exec" --pidfile "$w/docker.pid" --host "$DOCKER_HOST" \
        --storage-driver vfs --default-ulimit nofile=1024:4096 >>"$w/dockerd.log" 2>&1 &
    dockerd=$!
    eventually docker version
}
killed() {
    kill -9 "$1"
    wait "$1" 2>/dev/null || true
}
# Starts a container of this name, with these options, that serves a page.
start() {
    name=$1
    shift
    docker run -d --name "$name" "$@" image \
        sh -c "echo this is $name >/www/index.html; exec httpd -f -p 80 -h /www" >/dev/null
}
has_guests() { [ "$(guests)" = "$1" ]; }
# The address of a name, by Docker's DNS: a static program cannot resolve it.
named() {
    docker exec "$1" nslookup "$2" 127.0.0.11 | awk '/^Address/ { last = $NF } END { print last }'
}
page_in() {
    printf 'GET / HTTP/1.0\r\n\r\n' |
        docker exec -i "$1" nc -w 2 "$(named "$1" "$2")" 80 | grep -qx "this is $2"
}
has_route() { docker exec "$1" ip route | grep -q "^default via $2 "; }

# By itself: without an init process, Docker would take a killed one for a running one.
containerd --root "$w/containerd" --state "$w/containerd-state" --address "$w/containerd.sock" \
    >"$w/containerd.log" 2>&1 &
containerd=$!
machine
driver
dockerd
tar -C "$w/image" -c . | docker import - image >/dev/null

create() {
    docker network create -d grantway --subnet "$2" \
        -o socket="$w/run/grantway.sock" "$1" >/dev/null
}
create front 10.99.0.0/24
create back 10.98.0.0/24
said=$(docker network create -d grantway -o rate=1 wrong 2>&1) && fail "an unknown option"
case $said in
*'unknown option `rate`'*) ;;
*) fail "no reason: $said" ;;
esac

# A container reaches the network with its first packet; on a busy system not always.
eventually docker run --rm --network front image ping -c 1 -W 1 10.99.0.1
eventually has_guests 0

start web --network front --ip 10.99.0.50 --mac-address 02:11:22:33:44:55 -p 8080:80
start app --network front --restart always
eventually has_guests 2
docker exec web ip link show eth0 | grep -q 02:11:22:33:44:55 || fail "another MAC"
eventually page 10.99.0.50 web
eventually page_in app web
eventually page_in web app
eventually page 10.99.0.1:8080 web
eventually page 127.0.0.1:8080 web

# Two networks, and names in both.
start job --network back
docker network connect back app
eventually has_guests 4
eventually page_in job app
eventually page_in app job
docker exec app ip link show eth1 >/dev/null || fail "no second interface"
docker network disconnect back app
eventually has_guests 3

# Containers are guarded like guests of the file.
in_web() { nsenter --net --target "$(docker inspect -f '{{.State.Pid}}' web)" "$@"; }
in_web python3 "$top/testing/src/forge.py" eth0 10.99.0.50 10.99.0.1
dropped() {
    count=$("$grantway" stat driver --json | grep -o "\"$1\": *[0-9][0-9]*" | grep -o '[0-9]*$')
    [ "$count" -ge "$2" ]
}
for drop in source:20 arp:20 address:40 dhcp:40 router:40 nd:20; do
    eventually dropped "forged_${drop%:*}" "${drop#*:}"
done
eventually page_in app web

# Restart of a container.
docker restart -t 0 web >/dev/null
eventually has_guests 3
eventually page_in app web
eventually page 10.99.0.1:8080 web

# The manager is killed. Its successor knows the guests, and attaches another one.
core() { "$grantway" status --json | sed 's/.*"pid": *\([0-9]*\), *"up_ns".*/\1/'; }
manager() {
    for child in $(cat /proc/"$(core)"/task/*/children); do
        case $(readlink "/proc/$child/exe") in
        */grantway-manager) echo "$child" ;;
        esac
    done
}
manager=$(manager)
kill -9 "$manager"
has_next_manager() { next=$(manager) && [ -n "$next" ] && [ "$next" != "$manager" ]; }
eventually has_next_manager
eventually has_guests 3
eventually page_in app web
start new --network front
eventually has_guests 4
eventually page_in app new
docker rm -f new >/dev/null
eventually has_guests 3

# The driver is killed. The machine ends in order, which removes its interfaces, and is started
# again. `down` makes it forget its guests.
killed $driver
driver
eventually page_in app web
kill -TERM "$(core)"
wait_down() { ! "$grantway" status; }
eventually wait_down
said=$(start new --network front 2>&1) && fail "a container without a machine"
case $said in
*"no machine answers at $w/run/grantway.sock"*) ;;
*) fail "no reason: $said" ;;
esac
docker rm -f new >/dev/null
machine
eventually has_guests 3
eventually page_in app web
eventually has_route web 10.99.0.1
eventually page 10.99.0.1:8080 web
"$grantway" down >/dev/null
docker rm -f job >/dev/null
machine
eventually has_guests 2
eventually page_in app web
eventually has_route app 10.99.0.1

# Docker is killed, and its containers with it.
killed $dockerd
dockerd
docker start web >/dev/null
eventually page_in app web
eventually page 10.99.0.1:8080 web
eventually has_guests 2

# As after a reboot: what lies below /run is lost, with every process and rule.
killed $dockerd
killed $driver
"$grantway" down >/dev/null
rm -r "$w/run-docker"
iptables -t nat -F
machine
driver
dockerd
docker start web >/dev/null
eventually page_in app web
eventually page 10.99.0.1:8080 web
eventually has_guests 2

# A full disk.
mount -t tmpfs -o size=4k tmpfs "$w/state/networks"
head -c 4096 /dev/zero >"$w/state/networks/full" || true
said=$(create full 10.97.0.0/24 2>&1) && fail "a network that is not recorded"
case $said in
*"cannot write to $w/state/networks"*) ;;
*) fail "no reason: $said" ;;
esac
umount "$w/state/networks"
eventually page_in app web

docker rm -f web app >/dev/null
docker network rm front back >/dev/null
eventually has_guests 0
no_interface() { ! ip -br link | grep -q gwd; }
eventually no_interface
iptables-save | grep -q 8080 && fail "a port is left: $(iptables-save)"
[ -z "$(ls "$w/state/networks" "$w/run-docker/endpoints" | grep -v :)" ] || fail "records are left"
