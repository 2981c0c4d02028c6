// SPDX-License-Identifier: GPL-2.0
/*
 * Virtual memory reference tracing: virtual time, the time that a task has spent
 * in user mode.
 *
 * A task's clock stops as it enters the kernel and runs again as it leaves, so
 * that faults don't count, nor the time when others run. It is read while it is
 * stopped: by the task itself, in the kernel.
 *
 * Off, it costs nothing, not even a nop. Exceptions and interrupts come through a
 * static call, which leads here while the clock is on; system calls and the way
 * back look at flags of the task in any case, which its first exception sets.
 *
 * No lock: a task's clock is touched by the task alone, without interrupts or in
 * such an order that an interrupt does no harm.
 */
#include <linux/entry-common.h>
#include <linux/minmax.h>
#include <linux/sched.h>
#include <linux/static_call.h>
#include <linux/vmtrace.h>
#include <linux/vmtrace_clock.h>
#include <asm/fpu/api.h>
#include <asm/idtentry.h>
#include <asm/io_bitmap.h>
#include <asm/tsc.h>

#include "internal.h"
#include "pte.h"

static bool vmtrace_clock_runs;
/* Ticks between user mode and here, there and back. */
static u32 vmtrace_clock_skip;

DEFINE_STATIC_CALL(irqentry_enter, irqentry_enter);

static __always_inline void vmtrace_clock_add(u64 skip)
{
	u64 now = rdtsc(), ran = now - current->vmtrace_since;

	/* Less than it took to get here: it was stopped at once. */
	current->vmtrace_vtime += ran - min(ran, skip);
	/* Without the protection, the way through the kernel counts. */
	current->vmtrace_since = vmtrace_broken(VMTRACE_BREAK_NOCLOCK) ? now : 0;
}

/*
 * An interrupt that comes while the clock runs stops it, even if it comes from
 * kernel mode: then it is between a system call's entry and its stopping the clock,
 * or in an exception that does not come through here.
 */
static noinstr irqentry_state_t vmtrace_irqentry_enter(struct pt_regs *regs)
{
	bool user = user_mode(regs);

	if (likely(current->vmtrace_since)) {
		vmtrace_clock_add(user ? vmtrace_clock_skip : 0);
	} else if (user) {
		struct thread_info *ti = current_thread_info();

		arch_set_bit(TIF_VMTRACE_CLOCK, &ti->flags);
		arch_set_bit(SYSCALL_WORK_BIT_VMTRACE_CLOCK, &ti->syscall_work);
	}
	return irqentry_enter(regs);
}

/* At a system call's entry. */
void vmtrace_clock_stop(void)
{
	unsigned long flags;

	local_irq_save(flags);
	if (current->vmtrace_since)
		vmtrace_clock_add(0);
	local_irq_restore(flags);
}

/* On the way back to user mode, without interrupts. */
static void vmtrace_clock_start(void)
{
	if (unlikely(!READ_ONCE(vmtrace_clock_runs))) {
		clear_thread_flag(TIF_VMTRACE_CLOCK);
		clear_syscall_work(VMTRACE_CLOCK);
		current->vmtrace_since = 0;
		return;
	}
	if (vmtrace_broken(VMTRACE_BREAK_NOCLOCK) && current->vmtrace_since)
		return;
	current->vmtrace_since = rdtsc();
}

/*
 * What is left of arch_exit_work() for a task with an I/O bitmap or a clock. The clock is
 * last: what comes before is the kernel's time.
 */
void vmtrace_exit_work(unsigned long ti_work)
{
	if (ti_work & _TIF_IO_BITMAP)
		tss_update_io_bitmap();
	if (ti_work & _TIF_NEED_FPU_LOAD)
		switch_fpu_return();
	if (ti_work & _TIF_VMTRACE_CLOCK)
		vmtrace_clock_start();
}

/* Fill in the fields of a trace's header that describe the clock. */
int vmtrace_clock_describe(struct vmtrace_header *h, u32 skip)
{
	if (!boot_cpu_has(X86_FEATURE_TSC) || !tsc_khz)
		return -EOPNOTSUPP;
	h->vtime_clock = VMTRACE_VTIME_TSC;
	h->vtime_khz = tsc_khz;
	h->vtime_skip = skip;
	return 0;
}

/*
 * Tasks take part from their next exception or interrupt on. May sleep; does not run while
 * vmtrace_clock_off() does.
 */
void vmtrace_clock_on(u32 skip)
{
	vmtrace_clock_skip = skip;
	WRITE_ONCE(vmtrace_clock_runs, true);
	static_call_update(irqentry_enter, vmtrace_irqentry_enter);
}

/* No task takes part any more. May sleep; does not run while vmtrace_clock_on() does. */
void vmtrace_clock_off(void)
{
	if (!vmtrace_clock_runs)
		return;
	static_call_update(irqentry_enter, irqentry_enter);
	WRITE_ONCE(vmtrace_clock_runs, false);
}
