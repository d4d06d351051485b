#!/bin/busybox sh
# The init program of the virtual machine of the columns `vm-…` of `vm.toml`. It configures an
# address, and runs the program of the loads, which it finds in a folder of the host, for each
# connection to port 6000: the first line is the argument, further lines control the load.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for word in $(cat /proc/cmdline); do
	case "$word" in
	address=*) address=${word#address=} ;;
	interface=*) interface=${word#interface=} ;;
	folder=*) folder=${word#folder=} ;;
	program=*) program=${word#program=} ;;
	esac
done
mount -t hostfs none /host -o "$folder"
# Drivers that are not modules of the kernel are part of it.
for module in failover net_failover virtio_net; do
	[ ! -e /modules/$module.ko ] || insmod /modules/$module.ko
done
until [ -e "/sys/class/net/$interface" ]; do sleep 0.1; done
ip link set lo up
ip link set "$interface" up
ip addr add "$address" dev "$interface"
cat >/bin/load <<END
#!/bin/sh
read -r spec
exec "/host/$program" internal load "\$spec"
END
chmod +x /bin/load
nc -ll -p 6000 -e /bin/load &
# 6000 in the kernel's tables.
until grep -q ':1770 ' /proc/net/tcp /proc/net/tcp6; do sleep 0.1; done
echo "network up"
while :; do sleep 1000; done
