#!/bin/sh
# `image.sh NAME ROOT FILE`: packs the folder ROOT as an image of one layer, an OCI archive.
set -eu
name=$1 root=$2 file=$3
media=application/vnd.oci.image
w=$(mktemp -d)
trap 'rm -rf "$w"' EXIT

# A blob's name is its checksum. Prints the blob's descriptor.
blob() {
    sum=$(sha256sum "$1" | cut -d ' ' -f 1)
    size=$(stat -c %s "$1")
    mv "$1" "$w/blobs/sha256/$sum"
    descriptor='{"mediaType":"'$media.$2'","digest":"sha256:'$sum'","size":'$size
}
mkdir -p "$w/blobs/sha256"
tar -C "$root" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf "$w/new" .
blob "$w/new" layer.v1.tar
layer=$descriptor
config='{"Env":["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],"Cmd":["sleep","1000000000"]}'
printf '{"architecture":"amd64","os":"linux","config":%s,
"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' "$config" "$sum" >"$w/new"
blob "$w/new" config.v1+json
printf '{"schemaVersion":2,"config":%s},"layers":[%s}]}' "$descriptor" "$layer" >"$w/new"
blob "$w/new" manifest.v1+json
printf '{"schemaVersion":2,"manifests":[%s,"annotations":{"io.containerd.image.name":"%s"}}]}' \
    "$descriptor" "$name" >"$w/index.json"
echo '{"imageLayoutVersion":"1.0.0"}' >"$w/oci-layout"
tar -C "$w" -cf "$file" .
