// SPDX-License-Identifier: GPL-2.0
/*
 * Virtual memory reference tracing: waits for room in the log, waits for
 * kvmtraced, and the fields of a trace's header that describe the machine.
 *
 * The output of a trace may stop taking data: its file system is frozen,
 * its device hangs, or its server waits for a task that is traced. So no wait
 * here is for ever. Time alone does not end one, for a slow output is not one
 * that has stopped: what counts is time in which kvmtraced got nothing done.
 */
#include <linux/init.h>
#include <linux/jiffies.h>
#include <linux/kstrtox.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/percpu.h>
#include <linux/random.h>
#include <linux/resume_user_mode.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <linux/timekeeping.h>
#include <linux/utsname.h>
#include <linux/vmtrace.h>
#include <linux/wait.h>

#include "internal.h"
#include "pte.h"

/*
 * One of the rings that this CPU uses is short of room: tasks that run here wait before
 * they fault again. Tasks on other CPUs go on.
 */
DEFINE_PER_CPU_READ_MOSTLY(bool, vmtrace_congested);

/*
 * Nobody waits for room: the trace or its window has ended, or the log has
 * failed. Whoever makes the log congested after this makes no one wait.
 */
static bool vmtrace_let_go;

/* What kvmtraced has got done: a number that changes. */
static unsigned long vmtrace_progress;

/* The stall limit, in jiffies; 0: none. Of the present trace; as booted. */
static unsigned long vmtrace_limit;
static unsigned long vmtrace_limit_default __ro_after_init =
	VMTRACE_STALL_DEFAULT * HZ / MSEC_PER_SEC;

/*
 * An exiting task waits no longer than that without progress, whatever the limit
 * is: no signal reaches it. Then no exiting task waits until there is progress, for
 * one may have thousands of events.
 */
#define VMTRACE_EXIT_WAIT	(30 * HZ)

/* How far kvmtraced was when one of them gave up. */
static unsigned long vmtrace_exits_at = ULONG_MAX;

/*
 * How long a task that accesses another task's memory waits at most. Then no such
 * task waits until there is progress, for each of its pages is an event.
 */
#define VMTRACE_OTHER_WAIT	HZ

/* How far kvmtraced was when one of them gave up. */
static unsigned long vmtrace_others_at = ULONG_MAX;

/*
 * A limit has passed after that many waits of a part of it. A clock that leaps
 * on, as after a pause of a virtual machine, ends one of them and not all.
 */
#define VMTRACE_STALL_PARTS	8

static DECLARE_WAIT_QUEUE_HEAD(vmtrace_room);

/* The thread of the trace, as long as it can be called back. */
static struct task_struct *vmtrace_session;

/* Seconds; 0 takes the limit away, for emulators whose clock leaps. */
static int __init vmtrace_stall_setup(char *str)
{
	unsigned int seconds;

	if (kstrtouint(str, 0, &seconds) || seconds > 24 * 60 * 60)
		pr_err("vmtrace: vmtrace_stall=%s is not understood\n", str);
	else
		vmtrace_limit_default = seconds * HZ;
	return 1;
}
__setup("vmtrace_stall=", vmtrace_stall_setup);

/* A trace begins; its limit is @stall_ms, or the default if that is 0. */
void vmtrace_set_limit(u32 stall_ms)
{
	WRITE_ONCE(vmtrace_limit, stall_ms ? msecs_to_jiffies(stall_ms) :
					     vmtrace_limit_default);
}

/* Time without progress, of which only what was waited for counts. */
struct vmtrace_stall {
	unsigned long seen;
	unsigned int parts;
};

static void vmtrace_stall_begin(struct vmtrace_stall *s)
{
	s->seen = READ_ONCE(vmtrace_progress);
	s->parts = 0;
}

/* How long to wait before the next look; @limit is not 0. */
static unsigned long vmtrace_stall_part(unsigned long limit)
{
	return DIV_ROUND_UP(limit, VMTRACE_STALL_PARTS);
}

/* One more part has passed: whether the limit has. */
static bool vmtrace_stalled(struct vmtrace_stall *s)
{
	unsigned long now = READ_ONCE(vmtrace_progress);

	if (now == s->seen)
		return ++s->parts >= VMTRACE_STALL_PARTS;
	s->seen = now;
	s->parts = 0;
	return false;
}

/* Whether no task on this CPU needs to wait. The caller may move to another one after this. */
static bool vmtrace_has_room(void)
{
	return !this_cpu_read(vmtrace_congested) || READ_ONCE(vmtrace_let_go);
}

/*
 * A fault of a system call finds room in reserve, for the call may hold locks that
 * the output needs: those of an inode, or that against freezing. The task waits when
 * the call has ended. As the reserve is not without an end, a call that faults on more
 * pages than that has room for waits where it is, until the stall limit.
 */
static bool vmtrace_may_owe(void)
{
	if (!vmtrace_rs_spare(VMTRACE_SPARE_CALLS))
		return false;
	/* Workers don't return to user mode. */
	if (!(current->flags & PF_USER_WORKER))
		set_notify_resume(current);
	return true;
}

/* Whether this task returns to user mode, and so can wait for room then. */
bool vmtrace_can_owe(void)
{
	return !(current->flags & (PF_EXITING | PF_KTHREAD | PF_USER_WORKER));
}

/* Let this task wait for room before it returns to user mode, if it returns there. */
void vmtrace_owe(void)
{
	if (vmtrace_can_owe())
		set_notify_resume(current);
}

/*
 * Tasks that the output may need to get on, and that may be what gets it out of
 * trouble, don't wait as long as the CPU's ring has room in reserve: kernel threads
 * that use an address space, and what has asked for the same towards memory. Nor
 * do tasks that exit, once one of them has waited in vain.
 */
static bool vmtrace_is_needed(void)
{
	const unsigned int flusher = PF_MEMALLOC_NOIO | PF_LOCAL_THROTTLE;

	return ((current->flags & PF_KTHREAD) ||
		(current->flags & flusher) == flusher ||
		((current->flags & PF_EXITING) &&
		 READ_ONCE(vmtrace_exits_at) == READ_ONCE(vmtrace_progress))) &&
	       vmtrace_rs_spare(VMTRACE_SPARE_NEEDED);
}

/*
 * Wait until there is room in the log. Returns -EINTR if a fatal signal came first.
 *
 * If kvmtraced gets nothing done for as long as the limit says, the log has
 * failed: no more is recorded, and everybody goes on. Any of those who wait may
 * find that, so no timer is needed.
 *
 * No signal reaches a task that exits, and its faults must succeed, for others wait
 * for what it writes then. Before its wait would get too long for others, it goes
 * on: its faults find room in reserve, its events find room or are lost. Without
 * a reserve the log has failed.
 */
static int vmtrace_wait_room(void)
{
	const bool exiting = current->flags & PF_EXITING;
	struct vmtrace_stall stall;
	unsigned long limit, part;
	long left;

	vmtrace_rs_kick();
	vmtrace_stall_begin(&stall);
	limit = READ_ONCE(vmtrace_limit) ?: MAX_SCHEDULE_TIMEOUT;
	part = vmtrace_stall_part(exiting ? min(limit, VMTRACE_EXIT_WAIT) :
					    limit);
	while (!vmtrace_has_room()) {
		if (exiting)
			left = wait_event_timeout(vmtrace_room,
						  vmtrace_has_room(), part);
		else
			left = wait_event_killable_timeout(vmtrace_room,
							   vmtrace_has_room(),
							   part);
		if (left < 0)
			return -EINTR;
		if (left || !vmtrace_stalled(&stall))
			continue;
		if (exiting && limit > VMTRACE_EXIT_WAIT &&
		    vmtrace_rs_spare(VMTRACE_SPARE_NEEDED)) {
			WRITE_ONCE(vmtrace_exits_at, stall.seen);
			return 0;
		}
		vmtrace_rs_stalled();
	}
	return 0;
}

/* The same for a traced task, counted. */
static int vmtrace_wait_own(void)
{
	vmtrace_rs_waited();
	if (vmtrace_broken(VMTRACE_BREAK_NOBLOCK)) {
		vmtrace_rs_kick();
		return 0;
	}
	return vmtrace_wait_room();
}

/*
 * Wait for room in the log. Called before a fault takes a lock, and before a task
 * that owes a wait returns to user mode. kvmtraced does not wait here, because it has
 * no address space. Returns -EINTR if a fatal signal came first.
 *
 * @call: a fault of a system call, which can wait when the call has ended.
 */
int __vmtrace_throttle(bool call)
{
	if (!vmtrace_own_mm() || READ_ONCE(vmtrace_let_go) ||
	    vmtrace_is_needed() || (call && vmtrace_may_owe()))
		return 0;
	return vmtrace_wait_own();
}

/**
 * vmtrace_wait_to_log - wait for room for an event
 *
 * Returns false if this task is not to wait (any more). Then its event is lost if the
 * ring is full. The caller may hold mmap_lock, which kvmtraced never takes. Others may
 * want it, so this is called only if hardly any room is left.
 *
 * The thread of a trace waits, too, although it has no address space that is traced. It
 * may hold the lock that keeps windows from changing (window.rs) meanwhile, or mmap_lock
 * of an address space whose last user it is.
 */
bool vmtrace_wait_to_log(void)
{
	int ret;

	if (READ_ONCE(vmtrace_let_go))
		return false;
	if (current == READ_ONCE(vmtrace_session))
		ret = vmtrace_throttle_snapshot();
	else if (vmtrace_own_mm() && !vmtrace_is_needed() &&
		 !vmtrace_broken(VMTRACE_BREAK_NOBLOCK))
		ret = vmtrace_wait_own();
	else
		return false;
	return !ret && !READ_ONCE(vmtrace_let_go);
}

/*
 * The same for the thread of a trace, which describes what there is when a trace or
 * a window begins. Nothing depends on that thread, and it holds no lock here that
 * the output could need. STOP ends this wait: see vmtrace_set_ending().
 */
int vmtrace_throttle_snapshot(void)
{
	if (vmtrace_has_room())
		return 0;
	return vmtrace_wait_room();
}

/*
 * The same for a task that is not traced and fills the log with events about
 * other tasks. The output of the log may depend on this task, so the wait is
 * short. After it, an event that finds no room is counted as lost.
 */
void vmtrace_throttle_other(void)
{
	const unsigned long at = READ_ONCE(vmtrace_progress);

	if (vmtrace_has_room() || READ_ONCE(vmtrace_others_at) == at ||
	    (current->mm && vmtrace_mm_id(current->mm)))
		return;
	vmtrace_rs_kick();
	if (!wait_event_killable_timeout(vmtrace_room, vmtrace_has_room(),
					 VMTRACE_OTHER_WAIT))
		WRITE_ONCE(vmtrace_others_at, at);
}

/*
 * Make tasks on @cpu wait for room: a ring that it uses is short of it. Only functions
 * that wake those who wait clear the flag.
 */
void vmtrace_congest(unsigned int cpu)
{
	if (cpu_possible(cpu) && !READ_ONCE(vmtrace_let_go))
		WRITE_ONCE(per_cpu(vmtrace_congested, cpu), true);
}

/* Make tasks on all CPUs wait, until kvmtraced has looked at the rings. */
void vmtrace_congest_all(void)
{
	unsigned int cpu;

	for_each_possible_cpu(cpu)
		WRITE_ONCE(per_cpu(vmtrace_congested, cpu), true);
}

/*
 * Let the tasks go on that wait on CPUs which have room again. If a ring becomes full
 * meanwhile, its flag may be cleared all the same. The next record sets it again.
 */
void vmtrace_relieve(void)
{
	bool any = false;
	unsigned int cpu;

	for_each_possible_cpu(cpu) {
		if (READ_ONCE(per_cpu(vmtrace_congested, cpu)) &&
		    vmtrace_rs_relieved(cpu)) {
			WRITE_ONCE(per_cpu(vmtrace_congested, cpu), false);
			any = true;
		}
	}
	if (any)
		wake_up_all(&vmtrace_room);
}

/* Whether tasks wait for room from here on. */
void vmtrace_set_waits(bool wait)
{
	unsigned int cpu;

	WRITE_ONCE(vmtrace_let_go, !wait);
	for_each_possible_cpu(cpu)
		WRITE_ONCE(per_cpu(vmtrace_congested, cpu), false);
	wake_up_all(&vmtrace_room);
}

/*
 * Waits for kvmtraced, and for the end of a trace: for a change of this number,
 * which is read before a look at what is waited for.
 */
static atomic_t vmtrace_changes;
static DECLARE_WAIT_QUEUE_HEAD(vmtrace_change);

u32 vmtrace_seen(void)
{
	/* Before what is looked at next. */
	return atomic_read_acquire(&vmtrace_changes);
}

void vmtrace_changed(void)
{
	/* After what has changed. */
	atomic_inc_return_release(&vmtrace_changes);
	wake_up_all(&vmtrace_change);
}

/* kvmtraced, the only caller, has got something done. */
void vmtrace_progressed(void)
{
	WRITE_ONCE(vmtrace_progress, vmtrace_progress + 1);
}

static bool vmtrace_has_changed(u32 seen)
{
	return atomic_read(&vmtrace_changes) != seen;
}

/**
 * vmtrace_wait_change - wait until something has changed
 * @seen: what vmtrace_seen() gave
 * @most: ms, if the stall limit is longer; 0: for ever
 *
 * Returns 0; -ETIMEDOUT if kvmtraced got nothing done for that long; -EINTR if a
 * fatal signal came first. No signal reaches a kernel thread.
 */
int vmtrace_wait_change(u32 seen, u32 most)
{
	unsigned long limit = READ_ONCE(vmtrace_limit), part;
	struct vmtrace_stall stall;
	long left;

	if (!most || !limit)
		limit = MAX_SCHEDULE_TIMEOUT;
	else
		limit = min(limit, msecs_to_jiffies(most));
	part = vmtrace_stall_part(limit);
	vmtrace_stall_begin(&stall);
	for (;;) {
		if (current->flags & PF_KTHREAD)
			left = wait_event_idle_timeout(vmtrace_change,
						       vmtrace_has_changed(seen),
						       part);
		else
			left = wait_event_killable_timeout(vmtrace_change,
							   vmtrace_has_changed(seen),
							   part);
		if (left < 0)
			return -EINTR;
		if (left)
			return 0;
		if (vmtrace_stalled(&stall))
			return -ETIMEDOUT;
	}
}

/* What is written back is waited for in parts: the least and the largest one. */
#define VMTRACE_BACK_MIN	SZ_64K
#define VMTRACE_BACK_MAX	SZ_8M

/*
 * Write back the @size bytes of the output, so that it can be seen that this goes
 * on. The metadata are left to what follows.
 *
 * While one part is waited for, the next one is on its way, so that the disk does
 * not idle. A part is as large as the disk is fast: a slow one is seen to get on,
 * and a fast one has large writes.
 */
int vmtrace_write_back(struct file *file, loff_t size)
{
	struct address_space *mapping = file->f_mapping;
	loff_t from, to, ahead, sent = 0, part = VMTRACE_BACK_MIN;
	unsigned long start;
	int ret = 0;

	for (from = 0; from < size && !ret; from = to) {
		to = min(from + part, size);
		ahead = min(from + 2 * part, size);
		start = jiffies;
		if (sent < ahead) {
			ret = filemap_fdatawrite_range(mapping, sent,
						       ahead - 1);
			sent = ahead;
		}
		if (!ret)
			ret = filemap_fdatawait_range(mapping, from, to - 1);
		vmtrace_progressed();
		if (time_before(jiffies, start + HZ / 32))
			part = min(2 * part, VMTRACE_BACK_MAX);
		else if (time_after(jiffies, start + HZ / 8))
			part = max(part / 2, VMTRACE_BACK_MIN);
	}
	return ret;
}

/*
 * The thread of a trace is to end what it does. It may wait for locks of address
 * spaces, which a kernel thread can only be called back from by SIGKILL.
 */
static bool vmtrace_is_ending;
static DEFINE_SPINLOCK(vmtrace_session_lock);

/* This window has all of its references. */
static bool vmtrace_window_is_full;
static DECLARE_WAIT_QUEUE_HEAD(vmtrace_window_queue);

void vmtrace_set_ending(bool ending)
{
	WRITE_ONCE(vmtrace_is_ending, ending);
	if (!ending)
		return;
	wake_up(&vmtrace_window_queue);
	spin_lock(&vmtrace_session_lock);
	if (vmtrace_session)
		send_sig(SIGKILL, vmtrace_session, 1);
	spin_unlock(&vmtrace_session_lock);
}

/* This thread can be called back from here on. */
void vmtrace_session_begins(void)
{
	allow_kernel_signal(SIGKILL);
	spin_lock(&vmtrace_session_lock);
	vmtrace_session = current;
	spin_unlock(&vmtrace_session_lock);
}

/* It was, or needs not be any more: what follows is not to be cut short. */
void vmtrace_session_ends(void)
{
	spin_lock(&vmtrace_session_lock);
	vmtrace_session = NULL;
	spin_unlock(&vmtrace_session_lock);
	flush_signals(current);
}

bool vmtrace_ending(void)
{
	return READ_ONCE(vmtrace_is_ending);
}

/* Wake the thread of windows. Page faults call this under a page table lock. */
void vmtrace_window_full(bool full)
{
	WRITE_ONCE(vmtrace_window_is_full, full);
	if (full)
		wake_up(&vmtrace_window_queue);
}

/*
 * Let time pass, without adding to the load: @ns, U64_MAX for ever; or until the
 * trace is to end, or with @full until the window is full.
 */
void vmtrace_window_wait(u64 ns, bool full)
{
	const ktime_t time = ns > KTIME_MAX ? KTIME_MAX : ns_to_ktime(ns);

	wait_event_interruptible_hrtimeout(vmtrace_window_queue,
					   vmtrace_ending() ||
					   (full && READ_ONCE(vmtrace_window_is_full)),
					   time);
}

/* Whether a CPU is to have buffers. It may come or go at any moment. */
bool vmtrace_cpu_online(unsigned int cpu)
{
	return cpu_online(cpu);
}

/* Bytes. */
u64 vmtrace_memory(void)
{
	return (u64)totalram_pages() << PAGE_SHIFT;
}

/**
 * vmtrace_affordable - how much memory a trace may take without harm to others
 *
 * Bytes, of those that are free or easily freed.
 */
u64 vmtrace_affordable(void)
{
	const long pages = si_mem_available();

	return pages > 0 ? (u64)(pages - pages / 8) << PAGE_SHIFT : 0;
}

/**
 * vmtrace_alloc - memory for records and sets, set to zero
 * @size: bytes
 *
 * Returns NULL rather than to end programs that have memory. To be freed by kvfree().
 */
void *vmtrace_alloc(size_t size)
{
	return kvmalloc(size, GFP_KERNEL | __GFP_NORETRY | __GFP_NOWARN |
			      __GFP_ZERO);
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
