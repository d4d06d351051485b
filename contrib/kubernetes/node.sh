#!/bin/sh
# Makes a node of Kubernetes use Grantway, and undoes it.
#
#   node.sh install   plugins into CNI_BIN_DIR, then FILES/10-grantway.conflist into CNI_CONF_DIR;
#                     `loopback` among them, which containerd up to 1.7 calls for every pod
#   node.sh render    FILES/grantway.conf, filled in, to standard output
#   node.sh remove    takes the conflist and the plugin away again; what is gone is no error
#   node.sh routes    a route to the pods of every other node; lines `ADDRESS SUBNET` come in
#
# @POD_CIDR@ in the files is the node's subnet of pods, @GATEWAY@ its first address with the
# subnet's prefix length, which is the node's own.
set -eu

BIN=${CNI_BIN_DIR:-/opt/cni/bin}
CONF=${CNI_CONF_DIR:-/etc/cni/net.d}
# Where plugins are taken from, those of others, too, that the node lacks.
PLUGINS=${PLUGINS:-/usr/lib/cni}
FILES=${FILES:-/etc/grantway/node}
NAME=10-grantway.conflist
new=

refuse() {
    echo "node.sh: $*" >&2
    exit 1
}
trap '[ -z "$new" ] || rm -f "$new"' EXIT

# The node's subnet of pods: POD_CIDR, or what the API server says of the node NODE_NAME.
subnet() {
    cidr=${POD_CIDR:-}
    if [ -z "$cidr" ]; then
        [ -n "${NODE_NAME:-}" ] || refuse "neither POD_CIDR nor NODE_NAME is set"
        account=${SERVICE_ACCOUNT:-/var/run/secrets/kubernetes.io/serviceaccount}
        host=${KUBERNETES_SERVICE_HOST:?} port=${KUBERNETES_SERVICE_PORT:-443}
        case $host in *:*) host="[$host]" ;; esac
        node=$(printf 'header = "Authorization: Bearer %s"\n' "$(cat "$account/token")" |
            curl --silent --show-error --fail --max-time 30 --config - \
                --cacert "$account/ca.crt" "https://$host:$port/api/v1/nodes/$NODE_NAME") ||
            refuse "the API server does not tell of the node $NODE_NAME"
        cidr=$(printf '%s\n' "$node" | tr ',' '\n' |
            sed -n 's/.*"podCIDR": *"\([^"]*\)".*/\1/p' | head -n 1)
        [ -n "$cidr" ] || refuse "the node $NODE_NAME has no podCIDR: see --allocate-node-cidrs"
    fi
    octet='(0|[1-9][0-9]?|1[0-9]{2}|2[0-4][0-9]|25[0-4])'
    printf '%s\n' "$cidr" | grep -Eqx "($octet\.){3}$octet/([1-9]|[12][0-9]|30)" ||
        refuse "$cidr is no subnet of IPv4, such as 10.244.3.0/24"
    base=${cidr%/*} prefix=${cidr#*/}
    gateway="${base%.*}.$((${base##*.} + 1))/$prefix"
}

# A file of FILES, filled in.
filled() {
    [ -r "$FILES/$1" ] || refuse "there is no file $FILES/$1"
    if grep -q -e '@POD_CIDR@' -e '@GATEWAY@' "$FILES/$1"; then subnet; fi
    sed -e "s|@POD_CIDR@|${cidr:-}|g" -e "s|@GATEWAY@|${gateway:-}|g" "$FILES/$1"
}

# Standard input as a file of this mode, whole or not at all.
put() {
    new=$(mktemp "$(dirname "$1")/.grantway.XXXXXX") || refuse "$(dirname "$1") cannot be written"
    cat >"$new" && chmod "$2" "$new" && mv -f "$new" "$1" || refuse "$1 cannot be written"
    new=
}

# A plugin of others that the node has stays as it is.
is_there() { [ "$1" != grantway-cni ] && [ -x "$BIN/$1" ]; }

install() {
    conflist=$(filled "$NAME")
    for other in "$CONF"/*.conf "$CONF"/*.conflist "$CONF"/*.json; do
        [ -e "$other" ] || continue
        # The runtime takes the first one.
        first=$(printf '%s\n' "$NAME" "${other##*/}" | LC_ALL=C sort | head -n 1)
        [ "$first" = "$NAME" ] || refuse "$other would be taken before $NAME: remove it"
    done
    wanted=$(printf '%s\n' "$conflist" | grep -o '"type": *"[^"]*"' | cut -d '"' -f 4 | sort -u)
    [ -n "$wanted" ] || refuse "$FILES/$NAME names no plugin"
    wanted="$wanted loopback"
    for plugin in $wanted; do
        case $plugin in */* | .*) refuse "$plugin is no name of a plugin" ;; esac
        is_there "$plugin" || [ -x "$PLUGINS/$plugin" ] ||
            refuse "the plugin $plugin is neither in $PLUGINS nor in $BIN"
    done
    mkdir -p "$BIN" "$CONF" || refuse "$BIN and $CONF cannot be made"
    for plugin in $wanted; do
        is_there "$plugin" || put "$BIN/$plugin" 755 <"$PLUGINS/$plugin"
    done
    # Last: from now on it is used.
    printf '%s\n' "$conflist" | put "$CONF/$NAME" 644
}

remove() {
    rm -f "$CONF/$NAME" "$BIN/grantway-cni" || refuse "something of $CONF and $BIN stays"
}

routes() {
    own=" $(ip -o address show | awk '{ sub("/.*", "", $4); printf "%s ", $4 }')"
    while read -r address to; do
        [ -n "$to" ] || refuse "no line of an address and a subnet: $address"
        case $own in *" $address "*) continue ;; esac
        ip route replace "$to" via "$address" || refuse "no route to $to by $address"
    done
}

case ${1:-} in
install) install ;;
render) filled grantway.conf ;;
remove) remove ;;
routes) routes ;;
*) refuse "say install, render, remove or routes" ;;
esac
