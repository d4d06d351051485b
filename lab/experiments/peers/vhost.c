/*
 * The column `vm-one-process` of `vm.toml`: a vhost-user network device without isolation. One
 * process maps all memory of the virtual machine and moves each packet between it and a TAP by one
 * system call, straight from and to the buffers of the virtual machine. It is compiled at run time.
 *
 *   vhost SOCKET TAP
 *
 * It serves one User-Mode Linux with one queue pair, and trusts it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

/* Message types of the protocol. */
enum {
	GET_FEATURES = 1, SET_FEATURES = 2, SET_MEM_TABLE = 5, SET_VRING_NUM = 8,
	SET_VRING_ADDR = 9, SET_VRING_BASE = 10, GET_VRING_BASE = 11, SET_VRING_KICK = 12,
	SET_VRING_CALL = 13, GET_PROTOCOL_FEATURES = 15, GET_QUEUE_NUM = 17, GET_CONFIG = 24,
};

#define REPLY 4
#define NEED_REPLY 8
/* CSUM, GUEST_CSUM, MAC, GUEST_TSO4/6/ECN, HOST_TSO4/6/ECN, MRG_RXBUF, STATUS, INDIRECT_DESC,
 * PROTOCOL_FEATURES, VERSION_1. */
#define FEATURES \
	(1ull << 32 | 1 << 30 | 1 << 28 | 1 << 16 | 1 << 15 | 7 << 11 | 7 << 7 | 1 << 5 | 3)
/* REPLY_ACK, BACKEND_REQ, CONFIG. */
#define PROTOCOL_FEATURES 0x228
#define HEADER 12
#define SEGMENT (65550 + HEADER)
#define PIECES 256
#define BATCH 64

struct region { uint64_t guest, length, user, offset; uint8_t *map; };
struct desc { uint64_t addr; uint32_t length; uint16_t flags, next; };
struct ring {
	unsigned int size;
	int kick, call;
	uint16_t avail_at, used_at;
	struct desc *table;
	uint16_t *avail, *used;
};

static struct region regions[8];
static unsigned int count;
/* The queues to and from the virtual machine. */
static struct ring rings[2];
static int connection, tap;

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void *by_guest(uint64_t addr)
{
	for (unsigned int i = 0; i < count; i++)
		if (addr - regions[i].guest < regions[i].length)
			return regions[i].map + (addr - regions[i].guest);
	return NULL;
}

static void *by_user(uint64_t addr)
{
	for (unsigned int i = 0; i < count; i++)
		if (addr - regions[i].user < regions[i].length)
			return regions[i].map + (addr - regions[i].user);
	return NULL;
}

static int is_ready(const struct ring *r)
{
	return r->used && r->kick >= 0;
}

static int has_buffer(const struct ring *r)
{
	return r->avail_at != __atomic_load_n(&r->avail[1], __ATOMIC_ACQUIRE);
}

/* Appends the pieces of the next chain, and returns its head. */
static uint16_t next_chain(struct ring *r, struct iovec *pieces, int *number, size_t *bytes)
{
	uint16_t head = r->avail[2 + r->avail_at++ % r->size], at = head;
	struct desc *table = r->table;

	for (;;) {
		struct desc d = table[at];

		if (d.flags & 4) {
			table = by_guest(d.addr);
			at = 0;
			continue;
		}
		if (*number < PIECES) {
			pieces[*number].iov_base = by_guest(d.addr);
			pieces[(*number)++].iov_len = d.length;
			*bytes += d.length;
		}
		if (!(d.flags & 1))
			return head;
		at = d.next;
	}
}

static void put_used(struct ring *r, uint16_t head, uint32_t bytes)
{
	uint32_t *entry = (uint32_t *)(r->used + 2) + 2 * (r->used_at++ % r->size);

	entry[0] = head;
	entry[1] = bytes;
}

static void publish(struct ring *r)
{
	uint64_t one = 1;

	__atomic_store_n(&r->used[1], r->used_at, __ATOMIC_SEQ_CST);
	if (!(__atomic_load_n(&r->avail[0], __ATOMIC_SEQ_CST) & 1) && r->call >= 0 &&
	    write(r->call, &one, sizeof(one)) < 0 && errno != EAGAIN)
		fail("call");
}

/* Sends up to a batch of packets, and returns their number. */
static int from_vm(struct ring *r)
{
	struct iovec pieces[PIECES];
	int sent = 0;

	for (; sent < BATCH && has_buffer(r); sent++) {
		int number = 0;
		size_t bytes = 0;
		uint16_t head = next_chain(r, pieces, &number, &bytes);

		/* The TAP drops packets that it cannot store, as a NIC does. */
		if (writev(tap, pieces, number) < 0 && errno != EAGAIN && errno != EINVAL)
			fail("TAP");
		put_used(r, head, 0);
	}
	if (sent)
		publish(r);
	return sent;
}

/* Receives a packet straight into the buffers. Returns 0 without a packet, -1 if the buffers cannot
 * hold a whole segment. */
static int packet_to_vm(struct ring *r)
{
	struct iovec pieces[PIECES];
	uint16_t heads[PIECES], first = r->avail_at, *buffers;
	uint32_t sizes[PIECES];
	int number = 0, chains = 0, used = 0;
	size_t bytes = 0;
	ssize_t got;

	while (bytes < SEGMENT && chains < PIECES && has_buffer(r)) {
		size_t before = bytes;

		heads[chains] = next_chain(r, pieces, &number, &bytes);
		sizes[chains++] = bytes - before;
	}
	r->avail_at = first;
	if (bytes < SEGMENT)
		return -1;
	got = readv(tap, pieces, number);
	if (got <= 0)
		return 0;
	buffers = (uint16_t *)((uint8_t *)pieces[0].iov_base + HEADER - sizeof(*buffers));
	for (; got > 0; used++) {
		uint32_t part = got < sizes[used] ? got : sizes[used];

		put_used(r, heads[used], part);
		got -= part;
	}
	*buffers = used;
	r->avail_at += used;
	return 1;
}

/* Returns whether the TAP may have more packets. */
static int to_vm(struct ring *r, int *starved)
{
	int taken = 0, last = 1;

	while (taken < BATCH && (last = packet_to_vm(r)) > 0)
		taken++;
	if (taken)
		publish(r);
	*starved = last < 0;
	return last > 0;
}

static void map_memory(const uint64_t *table, const int *fds)
{
	for (; count; count--)
		munmap(regions[count - 1].map, regions[count - 1].length);
	for (; count < (uint32_t)table[0] && count < 8; count++) {
		struct region *r = &regions[count];

		memcpy(r, table + 1 + 4 * count, 32);
		r->map = mmap(NULL, r->length, PROT_READ | PROT_WRITE, MAP_SHARED, fds[count],
			      r->offset);
		if (r->map == MAP_FAILED)
			fail("memory");
		close(fds[count]);
	}
}

static void receive_all(void *bytes, size_t length)
{
	for (size_t at = 0; at < length;) {
		ssize_t got = read(connection, (uint8_t *)bytes + at, length - at);

		if (got <= 0)
			exit(0);
		at += got;
	}
}

static void message(void)
{
	uint32_t header[3], size, reply = 0;
	uint64_t body[512] = { 0 };
	char control[CMSG_SPACE(8 * sizeof(int))];
	struct iovec part = { header, sizeof(header) };
	struct msghdr m = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
			    .msg_controllen = sizeof(control) };
	int fds[8], given = 0;
	struct ring *r;

	if (recvmsg(connection, &m, MSG_CMSG_CLOEXEC) != sizeof(header))
		exit(0);
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
		given = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		memcpy(fds, CMSG_DATA(c), given * sizeof(int));
	}
	size = header[2] < sizeof(body) ? header[2] : sizeof(body);
	receive_all(body, size);
	r = &rings[body[0] & 1];
	switch (header[0]) {
	case GET_FEATURES:
		body[0] = FEATURES;
		reply = 8;
		break;
	case GET_PROTOCOL_FEATURES:
		body[0] = PROTOCOL_FEATURES;
		reply = 8;
		break;
	case GET_QUEUE_NUM:
		body[0] = 1;
		reply = 8;
		break;
	case GET_CONFIG: {
		static const uint8_t config[12] = { 2, 0, 0, 0, 7, 1, 1, 0, 1, 0, 0xdc, 5 };
		uint32_t at = body[0], length = body[0] >> 32;

		for (uint32_t i = 0; i < length && at + i < sizeof(config); i++)
			((uint8_t *)body)[HEADER + i] = config[at + i];
		reply = size;
		break;
	}
	case SET_MEM_TABLE:
		map_memory(body, fds);
		break;
	case SET_VRING_NUM:
		r->size = body[0] >> 32;
		break;
	case SET_VRING_ADDR:
		r->table = by_user(body[1]);
		r->avail = by_user(body[3]);
		r->used = by_user(body[2]);
		break;
	case SET_VRING_BASE:
		r->avail_at = r->used_at = body[0] >> 32;
		break;
	case GET_VRING_BASE:
		body[0] = (body[0] & 1) | (uint64_t)r->avail_at << 32;
		r->used = NULL;
		reply = 8;
		break;
	case SET_VRING_KICK:
		r->kick = given ? fds[0] : -1;
		break;
	case SET_VRING_CALL:
		r->call = given ? fds[0] : -1;
		/* User-Mode Linux passes a blocking descriptor. */
		if (given)
			fcntl(fds[0], F_SETFL, O_NONBLOCK);
		break;
	default:
		break;
	}
	if (!reply && header[1] & NEED_REPLY) {
		body[0] = 0;
		reply = 8;
	}
	if (reply) {
		uint32_t answer[3] = { header[0], 1 | REPLY, reply };
		struct iovec parts[2] = { { answer, sizeof(answer) }, { body, reply } };

		if (writev(connection, parts, 2) < 0)
			exit(0);
	}
}

static void open_tap(const char *name)
{
	struct ifreq request = { .ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR };
	int header = HEADER;

	strncpy(request.ifr_name, name, IFNAMSIZ - 1);
	tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (tap < 0 || ioctl(tap, TUNSETIFF, &request) || ioctl(tap, TUNSETVNETHDRSZ, &header) ||
	    ioctl(tap, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN))
		fail(name);
}

static void accept_vm(const char *path)
{
	struct sockaddr_un name = { .sun_family = AF_UNIX };
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	strncpy(name.sun_path, path, sizeof(name.sun_path) - 1);
	if (bind(listener, (struct sockaddr *)&name, sizeof(name)) || listen(listener, 1))
		fail(path);
	connection = accept(listener, NULL, NULL);
	if (connection < 0)
		fail(path);
}

static void drain(int fd)
{
	uint64_t number;

	if (read(fd, &number, sizeof(number)) < 0)
		fail("kick");
}

int main(int argc, char **argv)
{
	int starved = 0;

	if (argc != 3)
		return 2;
	rings[0].kick = rings[0].call = rings[1].kick = rings[1].call = -1;
	open_tap(argv[2]);
	accept_vm(argv[1]);
	for (;;) {
		int to = is_ready(&rings[0]), from = is_ready(&rings[1]), busy = 0;
		struct pollfd events[4] = {
			{ connection, POLLIN, 0 },
			{ from ? rings[1].kick : -1, POLLIN, 0 },
			{ to && !starved ? tap : -1, POLLIN, 0 },
			{ to && starved ? rings[0].kick : -1, POLLIN, 0 },
		};

		if (poll(events, 4, -1) < 0)
			fail("poll");
		if (events[0].revents)
			message();
		if (events[1].revents)
			drain(rings[1].kick);
		if (events[3].revents)
			drain(rings[0].kick);
		/* While there is work, kicks are suppressed. */
		do {
			busy = 0;
			if (is_ready(&rings[1])) {
				__atomic_store_n(&rings[1].used[0], 1, __ATOMIC_SEQ_CST);
				busy |= from_vm(&rings[1]) > 0;
				__atomic_store_n(&rings[1].used[0], 0, __ATOMIC_SEQ_CST);
				busy |= has_buffer(&rings[1]);
			}
			if (is_ready(&rings[0]))
				busy |= to_vm(&rings[0], &starved);
		} while (busy);
	}
}
