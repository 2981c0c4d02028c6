// SPDX-License-Identifier: GPL-2.0
/*
 * Virtual memory reference tracing: waits for room in the log, and the fields
 * of a trace's header that describe the machine.
 */
#include <linux/jiffies.h>
#include <linux/kthread.h>
#include <linux/random.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/timekeeping.h>
#include <linux/utsname.h>
#include <linux/vmtrace.h>
#include <linux/wait.h>

#include "internal.h"
#include "pte.h"

bool vmtrace_congested;

/* The time since which there has been no room, in jiffies. */
static unsigned long vmtrace_full_since;

/* How long an exiting task waits after that time at most, in jiffies. */
#define VMTRACE_EXIT_WAIT	(30 * HZ)

/* How long a task that accesses another task's memory waits at most. */
#define VMTRACE_OTHER_WAIT	HZ

static DECLARE_WAIT_QUEUE_HEAD(vmtrace_room);

/*
 * Wait for room in the log. Called before a fault takes a lock, and by events
 * under mmap_lock, which kvmtraced never takes. kvmtraced does not wait here
 * either, because it has no address space. Returns -EINTR if a fatal signal
 * came first.
 *
 * No signal reaches a task that exits. If that task serves the file system that
 * the log is written to, the log waits for its exit in turn. So the wait of an
 * exiting task is bounded. One bound holds for all of its events, which may be
 * thousands of unmaps; after it, an event that finds no room is counted as lost.
 */
int __vmtrace_throttle(void)
{
	if (!vmtrace_own_mm())
		return 0;
	vmtrace_rs_waited();
	vmtrace_rs_kick();
	if (vmtrace_broken(VMTRACE_BREAK_NOBLOCK))
		return 0;
	if (current->flags & PF_EXITING) {
		long left = READ_ONCE(vmtrace_full_since) + VMTRACE_EXIT_WAIT - jiffies;

		return wait_event_timeout(vmtrace_room,
					  !READ_ONCE(vmtrace_congested),
					  max(left, 0L)) ? 0 : -EINTR;
	}
	if (wait_event_killable(vmtrace_room, !READ_ONCE(vmtrace_congested)))
		return -EINTR;
	return 0;
}

/*
 * The same for a task that is not traced and fills the log with events about
 * other tasks. The output of the log may depend on this task, so the wait is
 * short. After it, an event that finds no room is counted as lost.
 */
void vmtrace_throttle_other(void)
{
	if (!READ_ONCE(vmtrace_congested) ||
	    (current->mm && vmtrace_mm_id(current->mm)))
		return;
	vmtrace_rs_kick();
	wait_event_killable_timeout(vmtrace_room, !READ_ONCE(vmtrace_congested),
				    VMTRACE_OTHER_WAIT);
}

void vmtrace_set_congested(bool congested)
{
	if (congested && !READ_ONCE(vmtrace_congested))
		WRITE_ONCE(vmtrace_full_since, jiffies);
	WRITE_ONCE(vmtrace_congested, congested);
	if (!congested)
		wake_up_all(&vmtrace_room);
}

/* This window has all of its references. */
static bool vmtrace_window_is_full;
static DECLARE_WAIT_QUEUE_HEAD(vmtrace_window_queue);

/* Wake the thread of windows. Page faults call this under a page table lock. */
void vmtrace_window_full(bool full)
{
	WRITE_ONCE(vmtrace_window_is_full, full);
	if (full)
		wake_up(&vmtrace_window_queue);
}

/*
 * Let time pass, without adding to the load: @ns, U64_MAX for ever; or until the
 * thread is asked to end, or with @full until the window is full.
 */
void vmtrace_window_wait(u64 ns, bool full)
{
	const ktime_t time = ns > KTIME_MAX ? KTIME_MAX : ns_to_ktime(ns);

	wait_event_interruptible_hrtimeout(vmtrace_window_queue,
					   kthread_should_stop() ||
					   (full && READ_ONCE(vmtrace_window_is_full)),
					   time);
}

/* Fill in what C knows best. */
void vmtrace_describe(struct vmtrace_header *h)
{
	get_random_bytes(h->uuid, sizeof(h->uuid));
	h->start_time = ktime_get_mono_fast_ns();
	h->realtime_offset = ktime_get_real_ns() - h->start_time;
	h->nr_cpus = nr_cpu_ids;
	h->debug_break = vmtrace_break;
	strscpy_pad(h->release, init_utsname()->release);
	strscpy_pad(h->arch, init_utsname()->machine);
}
