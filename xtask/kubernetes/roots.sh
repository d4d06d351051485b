#!/bin/sh
# `roots.sh PROGRAMS CONTRIB FOLDER`: two file systems of images. FOLDER/busybox is that of the
# pods. FOLDER/grantway has the programs of contrib/kubernetes/Containerfile, where its packages
# install them, copied from this system.
set -eu
programs=$1 contrib=$2 w=$3

for root in busybox grantway; do
    for folder in bin dev etc proc root run sys tmp usr/bin usr/lib usr/sbin var/www; do
        mkdir -p "$w/$root/$folder"
    done
    ln -s /run "$w/$root/var/run"
    echo 'root:x:0:0:root:/root:/bin/sh' >"$w/$root/etc/passwd"
done
cp "$(command -v busybox)" "$w/busybox/bin/busybox"
for applet in cat httpd ip ls sh sleep; do ln -s busybox "$w/busybox/bin/$applet"; done

root=$w/grantway
for tool in awk cat chmod curl cut dirname grep head ip mkdir mktemp mv rm sed sh sort tr; do
    path=$(command -v "$tool")
    cp -L "$path" "$root/usr/bin/$tool"
    ldd "$path" | grep -o '/[^ ]*' | while read -r library; do
        mkdir -p "$root$(dirname "$library")"
        cp -Ln "$library" "$root$library"
    done
done
ln -s /usr/bin/sh "$root/bin/sh"
cp "$contrib/node.sh" "$root/usr/bin/node.sh"
chmod 755 "$root/usr/bin/node.sh"
mkdir -p "$root/usr/libexec/grantway" "$root/usr/lib/cni"
cp "$programs/grantway" "$root/usr/bin/"
for program in grantwayd grantway-netd grantway-manager grantway-kube driver guest device; do
    cp "$programs/$program" "$root/usr/libexec/grantway/"
done
cp "$programs/grantway-cni" "$root/usr/lib/cni/"
for plugin in host-local loopback portmap; do
    cp "/usr/lib/cni/$plugin" "$root/usr/lib/cni/"
done
