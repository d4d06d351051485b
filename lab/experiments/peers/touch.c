/*
 * The guest of columns `…-touched` of `peers.toml`: sends frames through port 0, receives those
 * that the switch returns, and writes and reads every byte of each, like a real program. It is
 * compiled at run time against DPDK (Debian's libdpdk-dev).
 *
 *   touch [EAL arguments] -- SIZE BURST UNDER_WAY
 *
 * Answers each line of standard input with a line of JSON: `link` with whether the port is
 * connected, `start` when it has started to send, `show` with the sums since `start`. Exits at the
 * end of its input. Counts the cycles of loops that moved a frame.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stdint.h>
#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_launch.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>

#define MBUFS 16384
#define CACHE 256
#define RING 1024
#define BURST_MAX 64
#define FILLING 0x5a

static const uint8_t addresses[14] = {
	0x02, 0, 0, 0, 0, 0x01, 0x02, 0, 0, 0, 0, 0x02, 0x88, 0xb5,
};
static unsigned int size, burst, under_way;
static struct rte_mempool *pool;
/* The polling thread writes these, and the thread that answers reads them. */
static volatile int running, stop;
static volatile uint64_t received, cycles;
/* Prevents the compiler from removing the reads. */
static volatile uint64_t sum;

static void fill(struct rte_mbuf *m, uint64_t number)
{
	uint8_t *frame = rte_pktmbuf_mtod(m, uint8_t *);

	memset(frame, FILLING, size);
	memcpy(frame, addresses, sizeof(addresses));
	memcpy(frame + sizeof(addresses), &number, sizeof(number));
	m->data_len = size;
	m->pkt_len = size;
}

static uint64_t read_all(const struct rte_mbuf *m)
{
	const uint8_t *frame = rte_pktmbuf_mtod(m, const uint8_t *);
	unsigned int length = m->data_len, at = 0;
	uint64_t total = 0, word;

	for (; at + sizeof(word) <= length; at += sizeof(word)) {
		memcpy(&word, frame + at, sizeof(word));
		total += word;
	}
	for (; at < length; at++)
		total += frame[at];
	return total;
}

static unsigned int send_some(uint64_t *number, unsigned int room)
{
	struct rte_mbuf *m[BURST_MAX];
	unsigned int wanted = RTE_MIN(room, burst), sent, i;

	if (!wanted || rte_pktmbuf_alloc_bulk(pool, m, wanted))
		return 0;
	for (i = 0; i < wanted; i++)
		fill(m[i], (*number)++);
	sent = rte_eth_tx_burst(0, 0, m, wanted);
	if (sent < wanted)
		rte_pktmbuf_free_bulk(m + sent, wanted - sent);
	return sent;
}

static unsigned int take_some(void)
{
	struct rte_mbuf *m[BURST_MAX];
	unsigned int taken = rte_eth_rx_burst(0, 0, m, burst), i;
	uint64_t all = 0;

	for (i = 0; i < taken; i++) {
		if (i + 1 < taken)
			rte_prefetch0(rte_pktmbuf_mtod(m[i + 1], void *));
		all += read_all(m[i]);
	}
	if (taken)
		rte_pktmbuf_free_bulk(m, taken);
	sum += all;
	return taken;
}

static int poll_port(void *unused)
{
	uint64_t number = 0;
	unsigned int out = 0;

	(void)unused;
	while (!stop) {
		uint64_t start = rte_rdtsc();
		unsigned int sent, taken;

		if (!running)
			continue;
		sent = send_some(&number, under_way - out);
		taken = take_some();
		out += sent;
		out -= RTE_MIN(taken, out);
		received += taken;
		if (sent || taken)
			cycles += rte_rdtsc() - start;
	}
	return 0;
}

static int open_port(void)
{
	struct rte_eth_conf conf;
	struct rte_eth_dev_info info;
	uint16_t rx = RING, tx = RING;

	memset(&conf, 0, sizeof(conf));
	if (rte_eth_dev_info_get(0, &info))
		return -1;
	conf.txmode.offloads = info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_MBUF_FAST_FREE;
	if (rte_eth_dev_configure(0, 1, 1, &conf) || rte_eth_dev_adjust_nb_rx_tx_desc(0, &rx, &tx))
		return -1;
	if (rte_eth_rx_queue_setup(0, 0, rx, rte_socket_id(), NULL, pool) ||
	    rte_eth_tx_queue_setup(0, 0, tx, rte_socket_id(), NULL))
		return -1;
	return rte_eth_dev_start(0);
}

static void answer(const char *line)
{
	if (!strncmp(line, "link", 4)) {
		struct rte_eth_link link = { 0 };

		rte_eth_link_get_nowait(0, &link);
		printf("{\"up\":%s}\n", link.link_status ? "true" : "false");
	} else if (!strncmp(line, "start", 5)) {
		running = 1;
		puts("{}");
	} else {
		printf("{\"frames\":%lu,\"cycles\":%lu,\"ns\":%.0f}\n", received, cycles,
		       (double)rte_rdtsc() / rte_get_tsc_hz() * 1e9);
	}
	fflush(stdout);
}

static int fail(const char *why)
{
	printf("{\"error\":\"%s\"}\n", why);
	fflush(stdout);
	return 1;
}

int main(int argc, char **argv)
{
	int used = rte_eal_init(argc, argv);
	unsigned int worker;
	char line[64];

	if (used < 0)
		return fail("DPDK does not start");
	argc -= used;
	argv += used;
	if (argc != 4)
		return fail("SIZE BURST UNDER_WAY");
	size = atoi(argv[1]);
	burst = RTE_MIN(atoi(argv[2]), BURST_MAX);
	under_way = atoi(argv[3]);
	if (size < sizeof(addresses) + sizeof(uint64_t) || size > RTE_MBUF_DEFAULT_DATAROOM)
		return fail("no such size of a frame");
	pool = rte_pktmbuf_pool_create("frames", MBUFS, CACHE, 0, RTE_MBUF_DEFAULT_BUF_SIZE,
				       rte_socket_id());
	if (!pool)
		return fail("no memory for frames");
	if (!rte_eth_dev_count_avail() || open_port())
		return fail("the port does not start");
	worker = rte_get_next_lcore(-1, 1, 0);
	if (worker >= RTE_MAX_LCORE || rte_eal_remote_launch(poll_port, NULL, worker))
		return fail("no second thread");
	puts("{}");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin))
		answer(line);
	stop = 1;
	rte_eal_mp_wait_lcore();
	return 0;
}
