#!/bin/busybox sh
# The init program of the virtual machine: configures an address and starts a few servers.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for word in $(cat /proc/cmdline); do
	case "$word" in
	address=*) address=${word#address=} ;;
	mtu=*) mtu=${word#mtu=} ;;
	pairs=*) pairs=${word#pairs=} ;;
	lines=*) lines=${word#lines=} ;;
	esac
done
# Drivers that are not modules of the kernel are part of it.
for module in virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci \
	failover net_failover virtio_net; do
	[ ! -e /modules/$module.ko ] || insmod /modules/$module.ko
done
until [ -e /sys/class/net/eth0 ]; do sleep 0.1; done
ip link set lo up
[ -z "$pairs" ] || /bin/pairs eth0 "$pairs"
ip link set eth0 mtu "${mtu:-1500}" up
ip addr add "$address" dev eth0
# Port 6001 returns the checksum of the received data; port 6002 sends a fixed text.
while :; do nc -l -p 6001 -e md5sum; done &
while :; do nc -l -p 6002 -e seq 1 "${lines:-2000000}"; done &
# Port 6003 executes the received commands.
while :; do nc -l -p 6003 -e sh; done &
echo "network up"
while :; do sleep 1000; done
