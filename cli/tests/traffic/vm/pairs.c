/* Sets how many queue pairs an interface uses: ethtool -L NAME combined N. */
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

int main(int count, char **words)
{
	struct ethtool_channels channels = { .cmd = ETHTOOL_SCHANNELS };
	struct ifreq request = { .ifr_data = (char *)&channels };

	if (count != 3)
		return 2;
	snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", words[1]);
	channels.combined_count = atoi(words[2]);
	if (ioctl(socket(AF_INET, SOCK_DGRAM, 0), SIOCETHTOOL, &request)) {
		perror("ethtool");
		return 1;
	}
	return 0;
}
