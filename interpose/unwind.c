/*
 * unwind - what the compiler refers to for functions with a cleanup, found in libgcc_s at the first use.
 *
 * A cancelled thread runs the cleanups of calls that wait. The C library loads libgcc_s for that, and only then. If
 * libvma.so needed it, it would be loaded into each program that is executed, and be copied by each fork. The loading
 * costs a tenth of a millisecond. Both functions jump to the original and leave stack and arguments as they are,
 * because the original looks at its caller's frame.
 */
#include <dlfcn.h>
#include <stdlib.h>

#if defined(__x86_64__) || defined(__aarch64__)

void *unwind_originals[2] __attribute__((visibility("hidden")));
void unwind_load_libgcc_functions_or_abort(void) __attribute__((visibility("hidden")));

/* There is nowhere to go on without them. */
void unwind_load_libgcc_functions_or_abort(void)
{
	void *library = dlopen("libgcc_s.so.1", RTLD_NOW | RTLD_LOCAL);
	void *resume = library != NULL ? dlsym(library, "_Unwind_Resume") : NULL;
	void *personality = library != NULL ? dlsym(library, "__gcc_personality_v0") : NULL;

	if (resume == NULL || personality == NULL)
		abort();
	__atomic_store_n(&unwind_originals[1], personality, __ATOMIC_RELEASE);
	__atomic_store_n(&unwind_originals[0], resume, __ATOMIC_RELEASE);
}
#endif

#if defined(__x86_64__)
/* Five arguments at the most. */
#define FORWARD_TO_UNWINDER(name, place)                                                                               \
	__asm__(".pushsection .text\n"                                                                                 \
	        ".globl " name "\n"                                                                                    \
	        ".hidden " name "\n"                                                                                   \
	        ".type " name ", @function\n" name ":\n"                                                               \
	        "	endbr64\n"                                                                                           \
	        "	movq unwind_originals+" place "(%rip), %rax\n"                                                 \
	        "	testq %rax, %rax\n"                                                                                  \
	        "	jne 1f\n"                                                                                            \
	        "	pushq %rdi\n"                                                                                        \
	        "	pushq %rsi\n"                                                                                        \
	        "	pushq %rdx\n"                                                                                        \
	        "	pushq %rcx\n"                                                                                        \
	        "	pushq %r8\n"                                                                                         \
	        "	call unwind_load_libgcc_functions_or_abort\n"                                                        \
	        "	popq %r8\n"                                                                                          \
	        "	popq %rcx\n"                                                                                         \
	        "	popq %rdx\n"                                                                                         \
	        "	popq %rsi\n"                                                                                         \
	        "	popq %rdi\n"                                                                                         \
	        "	movq unwind_originals+" place "(%rip), %rax\n"                                                 \
	        "1:	jmp *%rax\n"                                                                                       \
	        ".size " name ", . - " name "\n"                                                                       \
	        ".popsection\n")
FORWARD_TO_UNWINDER("_Unwind_Resume", "0");
FORWARD_TO_UNWINDER("__gcc_personality_v0", "8");
#elif defined(__aarch64__)
#define FORWARD_TO_UNWINDER(name, place)                                                                               \
	__asm__(".pushsection .text\n"                                                                                 \
	        ".globl " name "\n"                                                                                    \
	        ".hidden " name "\n"                                                                                   \
	        ".type " name ", %function\n" name ":\n"                                                               \
	        "	hint 34\n" /* bti c */                                                                         \
	        "	adrp x16, unwind_originals\n"                                                                        \
	        "	add x16, x16, :lo12:unwind_originals\n"                                                              \
	        "	ldr x17, [x16, #" place "]\n"                                                                  \
	        "	cbnz x17, 1f\n"                                                                                      \
	        "	stp x29, x30, [sp, -64]!\n"                                                                          \
	        "	stp x0, x1, [sp, 16]\n"                                                                              \
	        "	stp x2, x3, [sp, 32]\n"                                                                              \
	        "	str x4, [sp, 48]\n"                                                                                  \
	        "	bl unwind_load_libgcc_functions_or_abort\n"                                                          \
	        "	ldr x4, [sp, 48]\n"                                                                                  \
	        "	ldp x2, x3, [sp, 32]\n"                                                                              \
	        "	ldp x0, x1, [sp, 16]\n"                                                                              \
	        "	ldp x29, x30, [sp], 64\n"                                                                            \
	        "	adrp x16, unwind_originals\n"                                                                        \
	        "	add x16, x16, :lo12:unwind_originals\n"                                                              \
	        "	ldr x17, [x16, #" place "]\n"                                                                  \
	        "1:	br x17\n"                                                                                          \
	        ".size " name ", . - " name "\n"                                                                       \
	        ".popsection\n")
FORWARD_TO_UNWINDER("_Unwind_Resume", "0");
FORWARD_TO_UNWINDER("__gcc_personality_v0", "8");
#endif
