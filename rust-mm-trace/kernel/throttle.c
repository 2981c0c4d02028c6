// SPDX-License-Identifier: GPL-2.0
/*
 * Virtual memory reference tracing: what waits for room need of C. throttle.rs and
 * recall.rs decide who waits.
 */
#include <linux/init.h>
#include <linux/kstrtox.h>
#include <linux/percpu.h>
#include <linux/resume_user_mode.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/vmtrace.h>

#include "internal.h"

/*
 * One of the rings that this CPU uses is short of room: tasks that run here wait before
 * they fault again. Tasks on other CPUs go on. The inline functions of <linux/vmtrace.h>
 * read it.
 */
DEFINE_PER_CPU_READ_MOSTLY(bool, vmtrace_congested);

/**
 * vmtrace_congested_on - a CPU's flag, which is there for as long as the kernel runs
 * @cpu: below nr_cpu_ids
 *
 * Returns NULL if there is never such a CPU.
 */
bool *vmtrace_congested_on(unsigned int cpu)
{
	return cpu_possible(cpu) ? per_cpu_ptr(&vmtrace_congested, cpu) : NULL;
}

unsigned long vmtrace_stall_limit __ro_after_init =
	VMTRACE_STALL_DEFAULT * HZ / MSEC_PER_SEC;

/* Seconds; 0 takes the limit away, for emulators whose clock leaps. */
static int __init vmtrace_stall_setup(char *str)
{
	unsigned int seconds;

	if (kstrtouint(str, 0, &seconds) || seconds > 24 * 60 * 60)
		pr_err("vmtrace: vmtrace_stall=%s is not understood\n", str);
	else
		vmtrace_stall_limit = seconds * HZ;
	return 1;
}
__setup("vmtrace_stall=", vmtrace_stall_setup);

/**
 * vmtrace_owe - have this task call vmtrace_resume_user_mode()
 *
 * It does so before it returns to user mode, if it returns there.
 */
void vmtrace_owe(void)
{
	set_notify_resume(current);
}

/**
 * vmtrace_allow_kill - let SIGKILL reach this kernel thread
 *
 * From here on, the signal ends this thread's waits for locks that can be ended. It has no
 * other effect.
 */
void vmtrace_allow_kill(void)
{
	allow_kernel_signal(SIGKILL);
}
