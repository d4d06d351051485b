#!/bin/sh
# `containerd.sh FOLDER`: prepares containerd's mounts, processes and links in namespaces, and an
# image without a registry. Ends with its standard input, and the namespaces with it.
set -eu
w=$1 image=$1/image

for folder in /run/netns /run/containerd /run/grantway /var/lib/cni /etc/cni/net.d /opt/cni/bin; do
    mkdir -p "$folder"
    # `ip netns` may have mounted it before, and the runtime uses the first mount.
    while umount -l "$folder" 2>/dev/null; do :; done
    mount -t tmpfs -o mode=755 tmpfs "$folder"
done
# As under systemd, containers see later mounts.
mount --make-shared /run/netns
ip link set lo up
# A node forwards packets between its pods.
echo 1 >/proc/sys/net/ipv4/ip_forward
# The image contains these plugins, which are copied to the node.
mkdir "$w/plugins"
for folder in /usr/lib/cni /usr/libexec/cni; do
    [ ! -d "$folder" ] || cp "$folder"/* "$w/plugins/"
done

# The names of an image's files are their checksums.
keep() {
    sum=$(sha256sum "$1" | cut -c 1-64) size=$(stat -c %s "$1")
    mv "$1" "$image/blobs/sha256/$sum"
}
kind=application/vnd.oci.image
part() {
    printf '{"mediaType":"%s","digest":"sha256:%s","size":%s' "$kind.$1" "$sum" "$size"
}
mkdir -p "$image/blobs/sha256" "$w/root"
for folder in bin dev etc proc run sys tmp var www; do mkdir "$w/root/$folder"; done
ln -s /run "$w/root/var/run"
cp "$(command -v busybox)" "$w/root/bin/"
tar -C "$w/root" -cf "$w/part" .
keep "$w/part"
layer=$(part layer.v1.tar) layers="{\"type\":\"layers\",\"diff_ids\":[\"sha256:$sum\"]}"
cmd='["/bin/busybox","sleep","1000000"]'
cat >"$w/part" <<END
{"architecture":"amd64","os":"linux","config":{"Cmd":$cmd},"rootfs":$layers}
END
keep "$w/part"
config=$(part config.v1+json)
cat >"$w/part" <<END
{"schemaVersion":2,"mediaType":"$kind.manifest.v1+json","config":$config},"layers":[$layer}]}
END
keep "$w/part"
manifest=$(part manifest.v1+json)
cat >"$image/index.json" <<END
{"schemaVersion":2,"manifests":[
    $manifest,"annotations":{"io.containerd.image.name":"localhost/busybox:1"}}]}
END
echo '{"imageLayoutVersion":"1.0.0"}' >"$image/oci-layout"
tar -C "$image" -cf "$w/image.tar" .

cat >"$w/containerd.toml" <<END
version = 2
root = "$w/containerd/root"
state = "$w/containerd/state"
[grpc]
address = "$w/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "localhost/busybox:1"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
END
echo ready
exec cat >/dev/null
