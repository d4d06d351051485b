#!/bin/sh
# Configures a Kubernetes node to use Grantway, or removes that configuration.
#
#   node.sh install   copies plugins to CNI_BIN_DIR, FILES/10-grantway.conflist to CNI_CONF_DIR;
#                     includes `loopback`, which containerd up to 1.7 calls for every pod
#   node.sh render    prints FILES/grantway.conf with its placeholders filled in
#   node.sh remove    removes the conflist and the plugin, if they exist
#
# In the files, placeholders stand for items of a list, one for each pod subnet of the node:
# @RANGES@ for ranges of `host-local`, @ROUTES@ for default routes, @GATEWAYS@ for the node's own
# addresses (the first address of each subnet, with its prefix length).
set -eu

BIN=${CNI_BIN_DIR:-/opt/cni/bin}
CONF=${CNI_CONF_DIR:-/etc/cni/net.d}
# The folder with the plugins, including reference plugins that the node lacks.
PLUGINS=${PLUGINS:-/usr/lib/cni}
FILES=${FILES:-/etc/grantway/node}
NAME=10-grantway.conflist
new=

refuse() {
    echo "node.sh: $*" >&2
    exit 1
}
trap '[ -z "$new" ] || rm -f "$new"' EXIT

# Sets ranges, routes and gateways for the node's pod subnets: POD_CIDR, with a comma between two,
# or, if unset, the API server's podCIDRs of the node NODE_NAME.
subnets() {
    cidrs=${POD_CIDR:-}
    if [ -z "$cidrs" ]; then
        [ -n "${NODE_NAME:-}" ] || refuse "neither POD_CIDR nor NODE_NAME is set"
        account=${SERVICE_ACCOUNT:-/var/run/secrets/kubernetes.io/serviceaccount}
        host=${KUBERNETES_SERVICE_HOST:?} port=${KUBERNETES_SERVICE_PORT:-443}
        case $host in *:*) host="[$host]" ;; esac
        node=$(printf 'header = "Authorization: Bearer %s"\n' "$(cat "$account/token")" |
            curl --silent --show-error --fail --max-time 30 --config - \
                --cacert "$account/ca.crt" "https://$host:$port/api/v1/nodes/$NODE_NAME") ||
            refuse "the API server does not describe the node $NODE_NAME"
        cidrs=$(printf '%s' "$node" | tr -d ' \n"' |
            sed -n 's/.*podCIDRs:\[\([^]]*\)\].*/\1/p')
        [ -n "$cidrs" ] || refuse "the node $NODE_NAME has no podCIDRs: see --allocate-node-cidrs"
    fi
    # The node's address follows the subnet's first address.
    last='0|[1-9][0-9]?|1[0-9]{2}|2[0-4][0-9]|25[0-4]'
    v4="(($last|255)\.){3}($last)/([1-9]|[12][0-9]|30)"
    v6='[0-9a-f]{1,4}(:[0-9a-f]{0,4}){2,7}/([1-9][0-9]?|1[01][0-9]|12[0-6])'
    ranges= routes= gateways= comma=
    for cidr in $(printf '%s' "$cidrs" | tr ',' ' '); do
        base=${cidr%/*}
        if printf '%s\n' "$cidr" | grep -Eqx "$v4"; then
            first=${base%.*}.$((${base##*.} + 1)) default=0.0.0.0/0
        elif printf '%s\n' "$cidr" | grep -Eqx "$v6"; then
            first=${base%:*}:$(printf %x $((0x0${base##*:} + 1))) default=::/0
        else
            refuse "$cidr is not a subnet, such as 10.244.3.0/24 or fd00:10:244:3::/64"
        fi
        ranges="$ranges$comma[{ \"subnet\": \"$cidr\" }]"
        routes="$routes$comma{ \"dst\": \"$default\" }"
        gateways="$gateways$comma\"$first/${cidr#*/}\""
        comma=', '
    done
}

# Prints a file of FILES with its placeholders filled in.
filled() {
    [ -r "$FILES/$1" ] || refuse "$FILES/$1 does not exist"
    if grep -q -e '@RANGES@' -e '@ROUTES@' -e '@GATEWAYS@' "$FILES/$1"; then subnets; fi
    sed -e "s|@RANGES@|${ranges:-}|g" -e "s|@ROUTES@|${routes:-}|g" \
        -e "s|@GATEWAYS@|${gateways:-}|g" "$FILES/$1"
}

# Writes standard input to a file of this mode, atomically.
put() {
    new=$(mktemp "$(dirname "$1")/.grantway.XXXXXX") || refuse "$(dirname "$1") cannot be written"
    cat >"$new" && chmod "$2" "$new" && mv -f "$new" "$1" || refuse "$1 cannot be written"
    new=
}

# Succeeds if the node already has this reference plugin, which is then not replaced.
is_there() { [ "$1" != grantway-cni ] && [ -x "$BIN/$1" ]; }

install() {
    conflist=$(filled "$NAME")
    for other in "$CONF"/*.conf "$CONF"/*.conflist "$CONF"/*.json; do
        [ -e "$other" ] || continue
        # The runtime uses the first file.
        first=$(printf '%s\n' "$NAME" "${other##*/}" | LC_ALL=C sort | head -n 1)
        [ "$first" = "$NAME" ] || refuse "$other takes precedence over $NAME: remove it"
    done
    wanted=$(printf '%s\n' "$conflist" | grep -o '"type": *"[^"]*"' | cut -d '"' -f 4 | sort -u)
    [ -n "$wanted" ] || refuse "$FILES/$NAME names no plugin"
    wanted="$wanted loopback"
    for plugin in $wanted; do
        case $plugin in */* | .*) refuse "$plugin is not a plugin name" ;; esac
        is_there "$plugin" || [ -x "$PLUGINS/$plugin" ] ||
            refuse "the plugin $plugin is neither in $PLUGINS nor in $BIN"
    done
    mkdir -p "$BIN" "$CONF" || refuse "$BIN and $CONF cannot be created"
    for plugin in $wanted; do
        is_there "$plugin" || put "$BIN/$plugin" 755 <"$PLUGINS/$plugin"
    done
    # The network comes last, because the runtime uses it from now on.
    printf '%s\n' "$conflist" | put "$CONF/$NAME" 644
}

remove() {
    rm -f "$CONF/$NAME" "$BIN/grantway-cni" || refuse "files in $CONF and $BIN cannot be removed"
}

case ${1:-} in
install) install ;;
render) filled grantway.conf ;;
remove) remove ;;
*) refuse "usage: node.sh install|render|remove" ;;
esac
