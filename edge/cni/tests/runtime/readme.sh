#!/bin/sh
# Runs README's commands for podman, unchanged, as on a new system: with podman's default backend,
# empty configuration folders, and no containers. Instead of pulling an image from docker.io, the
# script creates one with the same name.
. "$(dirname "$0")/common.sh"
unset GRANTWAY_RUNTIME_DIR
top=$(cd "$(dirname "$0")/../../../.." && pwd)
export PATH="$w/source/target/release:$PATH"
leave() {
    podman rm -fa -t 0 >/dev/null 2>&1 || true
    "$grantway" down >/dev/null 2>&1 || true
    find /sys/fs/cgroup -depth -path '*/libpod_parent*' -type d -exec rmdir {} + 2>/dev/null || true
}
trap leave EXIT

# Folders of the system, with their contents. Changes are discarded.
kept() {
    for folder in "$@"; do
        mkdir -p "$folder" "$w/kept$folder"
        cp -a "$folder/." "$w/kept$folder/"
        mount --bind "$w/kept$folder" "$folder"
    done
}
own /run/netns /run/grantway /run/containers /run/libpod /var/lib/cni /var/lib/containers /dev/shm \
    /etc/cni /usr/libexec/netavark
kept /etc/containers /usr/lib/cni /usr/lib/podman
rm -f /usr/lib/cni/grantway-cni /etc/containers/containers.conf.d/*
# Stands in for Debian 12's netavark 1.4 if that is not installed.
if [ ! -e /usr/lib/podman/netavark ] && [ ! -e /usr/libexec/podman/netavark ]; then
    printf '#!/bin/sh\necho "{\\"error\\":\\"unknown network driver\\"}"\nexit 1\n' \
        >/usr/lib/podman/netavark
    cp /usr/lib/podman/netavark /usr/lib/podman/aardvark-dns
    chmod 755 /usr/lib/podman/netavark /usr/lib/podman/aardvark-dns
fi
# Settings for an environment without systemd and with few rights. None concerns networks.
cat >/etc/containers/containers.conf <<END
[containers]
default_ulimits = ["nofile=1024:4096", "nproc=1024:4096"]
log_driver = "k8s-file"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
END
printf '[storage]\ndriver = "vfs"\ngraphroot = "/var/lib/containers/storage"\n%s\n' \
    'runroot = "/run/containers/storage"' >/etc/containers/storage.conf
backend=$(podman info --format '{{.Host.NetworkBackend}}')
[ "$backend" = netavark ] || fail "podman's default backend is $backend; expected netavark"

mkdir -p "$w/root/bin" "$w/root/www" "$w/root/tmp" "$w/root/etc" "$w/source/target"
cp "$(command -v busybox)" "$w/root/bin/busybox"
echo "a page of nginx" >"$w/root/www/index.html"
tar -C "$w/root" -cf "$w/root.tar" .
httpd='CMD ["/bin/busybox", "httpd", "-f", "-p", "80", "-h", "/www"]'
podman import --change "$httpd" "$w/root.tar" docker.io/library/nginx >/dev/null 2>&1 ||
    fail "podman cannot create the image"

# A built source tree whose release is this build.
for folder in contrib examples; do ln -s "$top/$folder" "$w/source/$folder"; done
ln -s "$(dirname "$grantway")" "$w/source/target/release"
cd "$w/source"
ip link add eth0 type veth peer name far0
ip link set far0 up
ip address add 192.0.2.2/24 dev eth0
ip link set eth0 up

# Prints code block N of README's section on containers.
block() {
    awk -v wanted="$1" '/^## / { on = /^## A container/ }
        on && /^```$/ { inside = 0 }
        inside && n == wanted
        on && /^```sh$/ { inside = 1; n++ }' "$top/README.md" | tee "$w/block"
    grep -q . "$w/block" || fail "README's section on containers has no block $1"
    while read -r line; do
        sed "s,^ *,," "$top/docs/containers.md" | grep -qxF "$line" ||
            fail "docs/containers.md lacks: $line"
    done <"$w/block"
}
runs() { said=$(set -e; eval "$1" 2>&1) || fail "$1: $said"; }

version=$(podman version --format '{{.Client.Version}}')
case $version in
4.*) own=2 ;;
*) own=3 ;;
esac
for number in 1 $own 4; do
    lines=$(block $number)
    runs "$lines"
done
case $said in
*"a page of nginx"*) ;;
*) fail "the page is missing: $said" ;;
esac
no_guest() { [ "$(guests)" = 0 ]; }
eventually no_guest
grantway stat --nonzero | grep -q 'out_packets' || fail "no packet passed the driver domain"
