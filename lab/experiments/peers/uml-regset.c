/* User-Mode Linux 6.1 gives the kernel a buffer of a fixed size for the extended registers of its
 * processes. On CPUs with AMX they are larger, and it panics. Preloaded, this library reads and
 * writes all of them and passes those that fit. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define NT_X86_XSTATE 0x202

static char all[1 << 16];

static long extended(long request, long pid, struct iovec *part)
{
	struct iovec whole = { all, sizeof(all) };
	long got = syscall(SYS_ptrace, PTRACE_GETREGSET, pid, NT_X86_XSTATE, &whole);
	size_t bytes = whole.iov_len < part->iov_len ? whole.iov_len : part->iov_len;

	if (got)
		return got;
	if (request == PTRACE_GETREGSET) {
		memcpy(part->iov_base, all, bytes);
		return 0;
	}
	memcpy(all, part->iov_base, bytes);
	return syscall(SYS_ptrace, PTRACE_SETREGSET, pid, NT_X86_XSTATE, &whole);
}

long ptrace(enum __ptrace_request request, ...)
{
	va_list rest;

	va_start(rest, request);
	long pid = va_arg(rest, long), addr = va_arg(rest, long), data = va_arg(rest, long);
	va_end(rest);
	if ((request == PTRACE_GETREGSET || request == PTRACE_SETREGSET) && addr == NT_X86_XSTATE)
		return extended(request, pid, (struct iovec *)data);
	if (request == PTRACE_PEEKDATA || request == PTRACE_PEEKTEXT || request == PTRACE_PEEKUSER) {
		long word, got = syscall(SYS_ptrace, request, pid, addr, &word);

		if (got == 0) {
			errno = 0;
			return word;
		}
		return got;
	}
	return syscall(SYS_ptrace, request, pid, addr, data);
}
