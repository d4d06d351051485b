#!/bin/sh
# Runs cnitool, the command-line program of CNI's library, with a machine.
. "$(dirname "$0")/common.sh"
export NETCONFPATH="$w/net.d" CNI_PATH="$w/bin:/usr/lib/cni:/opt/cni/bin:/usr/libexec/cni"
leave() { "$grantway" down >/dev/null 2>&1 || true; }
trap leave EXIT

# cnitool keeps results in /var/lib/cni.
own /run/netns /var/lib/cni
mkdir "$w/www"
echo "this is b" >"$w/www/index.html"
for name in a b; do ip netns add "$name"; done

cat >"$w/machine.toml" <<END
[[nic]]
name = "host"
kind = "tap"
ifname = "gw-cni"
addresses = ["10.99.0.1/24", "fd99::1/64"]
END
# Debian 12's plugins support CNI 1.0.0 at most. GC and STATUS need 1.1.0.
network() {
    name=$1 versions=$2 first=$3 last=$4 others=$5
    cat >"$w/net.d/$name.conflist" <<END
{
  "cniVersion": "1.0.0",
  "cniVersions": [$versions],
  "name": "$name",
  "plugins": [
    {
      "type": "grantway-cni",
      "socket": "$w/run/grantway.sock",
      "stateDir": "$w/state",
      "ipam": {
        "type": "host-local",
        "dataDir": "$w/leases",
        "ranges": [[{
          "subnet": "10.99.0.0/24", "rangeStart": "$first", "rangeEnd": "$last",
          "gateway": "10.99.0.1"
        }], [{ "subnet": "fd99::/64", "rangeStart": "fd99::$6", "gateway": "fd99::1" }]],
        "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }]
      }
    }$others
  ]
}
END
}
network alone '"0.4.0", "1.0.0", "1.1.0"' 10.99.0.10 10.99.0.99 "" 100
network chained '"0.4.0", "1.0.0"' 10.99.0.100 10.99.0.199 ',
    { "type": "portmap", "capabilities": { "portMappings": true }, "snat": true },
    { "type": "firewall", "backend": "iptables" },
    { "type": "tuning", "sysctl": { "net.ipv4.conf.eth0.arp_filter": "1" } }' 200

call() { cnitool "$1" "$2" "/run/netns/$3"; }
done_() { said=$(call "$@" 2>&1) || fail "cnitool $*: $said"; }
refused() {
    said=$(call "$1" "$2" "$3" 2>&1) && fail "cnitool $1 $2 $3: it succeeded"
    case $said in *"$4"*) ;; *) fail "cnitool $1 $2 $3, without '$4': $said" ;; esac
}
has() {
    found="$(guests) $(ls "$w"/leases/* 2>/dev/null | grep -c '^[0-9f]' || true)"
    [ "$found" = "$1" ] || fail "found $found guests and leases, not $1"
}

refused status alone a "no machine answers"
"$grantway" up "$w/machine.toml" --detach >/dev/null
done_ status alone a
done_ add alone a
case $said in
*'"cniVersion": "1.1.0"'*'"address": "10.99.0.10/24"'*) ;;
*) fail "unexpected result: $said" ;;
esac
export CAP_ARGS='{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}'
done_ add chained b
has "2 4"
# CHECK of Debian 12's portmap expects rules of IPv6 with addresses of IPv4.
for network in "alone a" "chained b"; do CAP_ARGS="" done_ check $network; done
for to in 10.99.0.1 10.99.0.100; do eventually ip netns exec a ping -c 1 -W 1 "$to"; done
[ "$(ip netns exec b cat /proc/sys/net/ipv4/conf/eth0/arp_filter)" = 1 ] || fail "no tuning"
iptables-save | grep -q 10.99.0.100 || fail "portmap and firewall added no rule"
ip netns exec b busybox httpd -f -p 80 -h "$w/www" &
httpd=$!
eventually page 10.99.0.100 b
eventually page 10.99.0.1:8080 b
kill "$httpd"

# CHECK reports changes; GC removes only attachments that are not in its list.
ip -n a route del default
refused check alone a "default"
done_ gc alone a
has "1 2"
for _ in 1 2; do done_ del chained b; done
has "0 0"
if iptables-save | grep 10.99.0.100 >&2; then fail "a rule remains"; fi

# Without a machine, ADD fails and DEL succeeds. The cleanup follows later.
done_ add alone a
"$grantway" down >/dev/null
refused status alone a "no machine answers"
refused add alone b "no machine answers"
done_ del alone a
"$grantway" up "$w/machine.toml" --detach >/dev/null
done_ status alone a
done_ add alone b
has "1 2"
done_ del alone b
has "0 0"
