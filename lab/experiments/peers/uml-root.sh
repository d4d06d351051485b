# Creates the initial file system `initrd` of a User-Mode Linux from `root`, which has `init`, and
# the library `regset.so`, which it needs on CPUs with AMX. Runs in the folder of both.
cd root && chmod +x init && mkdir -p proc sys dev host modules &&
	find /usr/lib/uml/modules -name '*failover.ko' -o -name virtio_net.ko |
	xargs cp -t modules &&
	cp $(command -v busybox) bin/ &&
	find . | busybox cpio -o -H newc 2>/dev/null | gzip -1 >../initrd &&
	cc -shared -fPIC -O2 -o ../regset.so ../regset.c
