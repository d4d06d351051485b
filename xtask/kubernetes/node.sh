#!/bin/sh
# `node.sh FOLDER NAME`: the first process of a node's namespaces. FOLDER has the files that a
# reboot keeps; /run is new.
[ $$ -eq 1 ] || { echo "$0: only as the first process of a PID namespace" >&2; exit 1; }
set -eu
w=$1

hostname "$2"
mount --make-rshared /
mkdir -p "$w"
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/netns /run/lock /run/containerd /run/grantway
mount --bind /run/netns /run/netns
own() {
    mkdir -p "$w/$1" "$2"
    mount --bind "$w/$1" "$2"
}
own kubelet /var/lib/kubelet
own plugins /opt/cni/bin
own net.d /etc/cni/net.d
own addresses /var/lib/cni
own log /var/log
ip link set lo up
sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1

cat >"$w/containerd.toml" <<END
version = 2
root = "$w/containerd"
state = "/run/containerd"
[grpc]
address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "localhost/busybox:1"
restrict_oom_score_adj = true
tolerate_missing_hugetlb_controller = true
END
# The node shares its control groups with the system, so the kubelet creates none of its own.
cat >"$w/kubelet.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: { anonymous: { enabled: true }, webhook: { enabled: false } }
authorization: { mode: AlwaysAllow }
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
failCgroupV1: false
failSwapOn: false
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
resolvConf: ""
nodeStatusUpdateFrequency: 2s
evictionHard: { memory.available: 50Mi, nodefs.available: 1%, imagefs.available: 1% }
END
echo ready
exec cat >/dev/null
