#!/bin/sh
# `cluster.sh FOLDER`: the first process of a cluster's namespaces, which end with its standard
# input. FOLDER/disk has everything that the cluster stores, in memory: containers need a file
# system that can be the upper one of an overlay. Only control groups outlive the namespaces.
[ $$ -eq 1 ] || { echo "$0: only as the first process of a PID namespace" >&2; exit 1; }
set -eu
w=$1
mkdir "$w/disk"
mount -t tmpfs -o mode=755 tmpfs "$w/disk"

mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/netns /run/lock
ip link set lo up
ip link add lan type bridge
ip address add 172.31.250.1/24 dev lan
ip address add fd00:172:31::1/64 dev lan nodad
ip link set lan up
sysctl -qw net.ipv6.conf.all.forwarding=1
echo ready
cat >/dev/null

kill -KILL -1 || true
cri=containerd/io.containerd.grpc.v1.cri
names=$(ls "$w"/disk/*/$cri/sandboxes "$w"/disk/*/$cri/containers 2>/dev/null |
    grep -Ex '[0-9a-f]{64}') || true
# A control group is busy until the kernel has buried its processes.
tries=100
while [ $((tries -= 1)) -gt 0 ]; do
    sleep 0.1
    is_left=
    # Version 2 has no folders of hierarchies.
    for group in /sys/fs/cgroup/k8s.io /sys/fs/cgroup/*/k8s.io; do
        for name in $names; do rmdir "$group/$name"; done 2>/dev/null || true
        rmdir "$group" 2>/dev/null || true
        [ ! -e "$group" ] || is_left=1
    done
    [ -n "$is_left" ] || break
done
