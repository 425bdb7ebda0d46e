/* System calls without a C library: each returns what the kernel does, -errno for an error.
 *
 * A static program of the C library spends longer on its own start than all of this one takes: it
 * asks the processor what it can (cpuid), for which a virtual machine stops. Tests compile with LIBC,
 * because the compiler's sanitizers need a C library. */
#include <asm/unistd.h>
#include <elf.h>
#include <stddef.h>

#ifdef LIBC

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static inline long call6(long number, long a, long b, long c, long d, long e, long f)
{
	long result = syscall(number, a, b, c, d, e, f);

	return result < 0 ? -(long)errno : result;
}
#define ENTRY int main(int count, char **argv) { begin(count, argv); }

#else

#if defined(__x86_64__) && defined(__LP64__)
static inline long call6(long number, long a, long b, long c, long d, long e, long f)
{
	long result;
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}
__asm__(".globl _start\n_start: xor %ebp, %ebp\n mov %rsp, %rdi\n and $-16, %rsp\n call enter\n");
#elif defined(__aarch64__) && defined(__LP64__)
static inline long call6(long number, long a, long b, long c, long d, long e, long f)
{
	register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c, x3 __asm__("x3") = d, x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;

	__asm__ volatile("svc 0"
			 : "+r"(x0)
			 : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
			 : "memory");
	return x0;
}
__asm__(".globl _start\n_start: mov x29, xzr\n mov x30, xzr\n mov x0, sp\n bl enter\n");
#else
#error "no system calls are known for this architecture"
#endif

/* What a function with an array compares before it returns, if it was compiled so. */
unsigned long __stack_chk_guard __attribute__((visibility("hidden")));

/* The kernel puts the count of arguments on the stack, above it the arguments, the environment and notes,
 * among them the address of 16 random bytes. */
static void take_guard(const long *stack)
{
	const long *note = stack + 1 + *stack + 1;

	while (*note++)
		;
	for (; note[0] != AT_NULL; note += 2)
		if (note[0] == AT_RANDOM)
			__stack_chk_guard = *(const unsigned long *)note[1];
}

/* Correct the addresses in this program, if it may be anywhere: only then it has dynamic entries. */
static void relocate(void)
{
	extern char __ehdr_start[] __attribute__((visibility("hidden")));
	char *base = __ehdr_start;
	const Elf64_Ehdr *header = (const Elf64_Ehdr *)base;
	const Elf64_Phdr *part = (const Elf64_Phdr *)(base + header->e_phoff);
	const Elf64_Dyn *entry = NULL;
	unsigned long first = 0, size = 0;

	for (int i = 0; i < header->e_phnum; i++)
		if (part[i].p_type == PT_DYNAMIC)
			entry = (const Elf64_Dyn *)(base + part[i].p_vaddr);
	for (; entry && entry->d_tag != DT_NULL; entry++)
		if (entry->d_tag == DT_RELA)
			first = entry->d_un.d_ptr;
		else if (entry->d_tag == DT_RELASZ)
			size = entry->d_un.d_val;
	for (const Elf64_Rela *each = (const Elf64_Rela *)(base + first); size; each++, size -= sizeof *each)
		*(char **)(base + each->r_offset) = base + each->r_addend;
}

#define ENTRY                                                                                      \
	__attribute__((used)) _Noreturn void enter(long *stack)                                    \
	{                                                                                          \
		relocate();                                                                        \
		take_guard(stack);                                                                 \
		begin((int)*stack, (char **)(stack + 1));                                          \
	}

#ifndef __clang__
/* Else it makes the loop in memcpy a call of memcpy. */
#pragma GCC optimize("no-tree-loop-distribute-patterns")
#endif
/* The compiler may call the first two by itself. */
void *memcpy(void *to, const void *from, size_t size)
{
	char *at = to;

	for (const char *next = from; size--; next++)
		*at++ = *next;
	return to;
}

void *memset(void *to, int byte, size_t size)
{
	for (char *at = to; size--; at++)
		*at = (char)byte;
	return to;
}

size_t strlen(const char *text)
{
	size_t length = 0;

	while (text[length])
		length++;
	return length;
}

int strcmp(const char *one, const char *other)
{
	while (*one && *one == *other)
		one++, other++;
	return (unsigned char)*one - (unsigned char)*other;
}

char *strchr(const char *text, int sign)
{
	for (; *text != (char)sign; text++)
		if (!*text)
			return NULL;
	return (char *)text;
}

#endif

#define CALL(name, a, b, c, d, e, f, ...)                                                          \
	call6(__NR_##name, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
/* call(name, up to six arguments) */
#define call(...) CALL(__VA_ARGS__, 0, 0, 0, 0, 0, 0, 0)
