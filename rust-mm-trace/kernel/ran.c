// SPDX-License-Identifier: GPL-2.0
/*
 * Virtual memory reference tracing: how long traced tasks have had a CPU.
 *
 * That is their time in user mode and in the kernel, the faults of tracing included. User
 * space can measure how long a reference takes. From this time, and from the number of
 * references, it computes how much slower tracing makes programs. Time between windows
 * counts, too. A trace of all processes also counts the process that has begun it,
 * although that process is not traced.
 *
 * Each CPU adds up its own time: when it switches, and when it is asked to, because a task
 * that runs may have begun to be traced. Both have interrupts off. Others read the sum
 * of all CPUs, and wait for no CPU longer than one such addition takes.
 */
#include <linux/minmax.h>
#include <linux/percpu.h>
#include <linux/sched.h>
#include <linux/sched/clock.h>
#include <linux/seqlock.h>
#include <linux/smp.h>
#include <linux/vmtrace.h>

#include "internal.h"
#include "pte.h"

/* Of a CPU; ns of local_clock(). */
struct vmtrace_ran {
	seqcount_t seq;
	u64 total;	/* until @since */
	u64 since;	/* since when a traced task has run, or 0 */
};

static DEFINE_PER_CPU(struct vmtrace_ran, vmtrace_ran);

/* Between vmtrace_ran_look() and vmtrace_ran_end(). */
static bool vmtrace_ran_counts;
/* What earlier traces have added up. */
static u64 vmtrace_ran_base;

/* Without interrupts: what ran until now is counted, and from now on it is @current. */
static void vmtrace_ran_turn(void)
{
	struct vmtrace_ran *ran = this_cpu_ptr(&vmtrace_ran);
	bool traced = READ_ONCE(vmtrace_ran_counts) &&
		      vmtrace_task_in_scope(current);
	u64 now = local_clock();

	raw_write_seqcount_begin(&ran->seq);
	if (ran->since)
		ran->total += now - ran->since;
	ran->since = traced ? now : 0;
	raw_write_seqcount_end(&ran->seq);
}

/* The present task has got the CPU. */
void vmtrace_ran_switch(void)
{
	unsigned long flags;

	if (!READ_ONCE(vmtrace_ran_counts))
		return;
	local_irq_save(flags);
	vmtrace_ran_turn();
	local_irq_restore(flags);
}

static void vmtrace_ran_interrupt(void *unused)
{
	vmtrace_ran_turn();
}

/* Of all CPUs, also of those that are offline now. */
static u64 vmtrace_ran_all(void)
{
	u64 sum = 0;
	int cpu;

	for_each_possible_cpu(cpu) {
		struct vmtrace_ran *ran = per_cpu_ptr(&vmtrace_ran, cpu);
		u64 total, since, now;
		unsigned int seq;

		do {
			seq = raw_read_seqcount_begin(&ran->seq);
			total = READ_ONCE(ran->total);
			since = READ_ONCE(ran->since);
		} while (read_seqcount_retry(&ran->seq, seq));
		now = local_clock();
		if (since)
			total += now - min(since, now);
		sum += total;
	}
	return sum;
}

/* A trace begins: no CPU counts, and no time has been counted. Any context. */
void vmtrace_ran_begin(void)
{
	WRITE_ONCE(vmtrace_ran_base, vmtrace_ran_all());
}

/*
 * The scope of the trace is known, and the hooks are on; or tasks have joined it. They may
 * run on for long before their CPUs switch.
 */
void vmtrace_ran_look(void)
{
	WRITE_ONCE(vmtrace_ran_counts, true);
	on_each_cpu(vmtrace_ran_interrupt, NULL, true);
}

/* The trace ends, and the hooks are still on. The sum stays. Interrupts are enabled. */
void vmtrace_ran_end(void)
{
	WRITE_ONCE(vmtrace_ran_counts, false);
	on_each_cpu(vmtrace_ran_interrupt, NULL, true);
}

/*
 * Since vmtrace_ran_begin(), of all CPUs, ns. While tasks run on, the clocks of CPUs may
 * differ a little, so it is exact only after vmtrace_ran_end().
 */
u64 vmtrace_ran_sum(void)
{
	return vmtrace_ran_all() - READ_ONCE(vmtrace_ran_base);
}
