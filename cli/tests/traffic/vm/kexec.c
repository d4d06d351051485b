/* kexec KERNEL INITRD COMMAND-LINE: starts another kernel without the firmware. */

#include <fcntl.h>
#include <linux/reboot.h>
#include <stdio.h>
#include <string.h>
#include <sys/reboot.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int count, char **words)
{
	if (count != 4)
		return 2;
	int kernel = open(words[1], O_RDONLY), initrd = open(words[2], O_RDONLY);
	size_t bytes = strlen(words[3]) + 1;
	if (syscall(SYS_kexec_file_load, kernel, initrd, bytes, words[3], 0UL) < 0) {
		perror("kexec_file_load");
		return 1;
	}
	return reboot(LINUX_REBOOT_CMD_KEXEC);
}
