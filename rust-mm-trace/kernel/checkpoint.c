// SPDX-License-Identifier: GPL-2.0
/*
 * Virtual memory reference tracing: checkpoints. A checkpoint describes all that is
 * traced while tracing goes on, for those who begin to read the trace with it. See struct
 * vmtrace_ev_checkpoint, and vmtrace_generation in hooks.c.
 *
 * An address space is described once: by the visit of the checkpoint, or before that by
 * one of its own tasks that is about to copy or to share it. So what is made of it has an
 * event that a reader understands. What was on the way when the checkpoint began is waited
 * for before the visit, and the visit finds it.
 */
#include <linux/delay.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/mutex.h>
#include <linux/sched/signal.h>
#include <linux/vmtrace.h>

#include "event.h"
#include "internal.h"
#include "late.h"
#include "pte.h"

#define VMTRACE_DESCRIBES	(VMTRACE_EVF_SNAPSHOT | VMTRACE_EVF_CHECKPOINT)

/*
 * Under it, a generation begins, or an address space is described: so each description is
 * of one generation. Its events do not wait for room.
 *
 * Lock order: mmap_lock -> this mutex -> the lock under which address spaces get their
 * numbers.
 */
static DEFINE_MUTEX(vmtrace_describe_mutex);

/*
 * Describe an address space that is locked, so that its mappings stay. Returns 1 if it was
 * described already, or -ENOSPC if there is no room for @bytes of events. With 0, it does
 * without.
 */
static int vmtrace_describe_locked(struct mm_struct *mm,
				    struct task_struct *leader, u64 bytes)
{
	u64 group = 0;
	u32 set;

	guard(mutex)(&vmtrace_describe_mutex);
	if (!vmtrace_mm_traced(mm) || vmtrace_is_described(mm))
		return 1;
	if (bytes && !vmtrace_rs_has_room(bytes))
		return -ENOSPC;
	/*
	 * A thread that is made meanwhile is found here, or it waits with the event of its
	 * fork: see vmtrace_describe_shared().
	 */
	vmtrace_visit_threads(leader, mm, vmtrace_snapshot_task,
			      VMTRACE_DESCRIBES);
	vmtrace_set_described(mm);
	set = vmtrace_rs_set_of(mm, &group);
	vmtrace_log_set(mm, set, group, VMTRACE_DESCRIBES);
	vmtrace_emit_maps(mm, VMTRACE_DESCRIBES);
	return 0;
}

/* How long a visit waits for an address space that is locked, in ms. */
#define VMTRACE_LOCK_MS		2000

/* How often room is made for what has grown meanwhile. */
#define VMTRACE_ROOM_TRIES	8

/*
 * Describe an address space, and the threads of @leader, which are in it. Returns 1 if it
 * was described in this generation already. Somebody who @visits the address space waits
 * for its lock for a limited time, and does not queue up before its faults: -EAGAIN if it
 * stays locked, -EINTR if STOP came first. The output may need mmap_lock, so room for all
 * of the events is made before, as in vmtrace_attach_mm(). Without memory for that, events
 * that find no room are lost.
 */
int vmtrace_describe_mm(struct mm_struct *mm, struct task_struct *leader,
			bool visits)
{
	int tries, ret, ms = 0;
	u64 bytes;

	for (tries = 0;; tries++) {
		if (!visits)
			mmap_read_lock(mm);
		while (visits && !mmap_read_trylock(mm)) {
			if (vmtrace_rs_ending())
				return -EINTR;
			if (++ms > VMTRACE_LOCK_MS)
				return -EAGAIN;
			fsleep(1000);
		}
		/* The ring of this CPU is that of the events. */
		migrate_disable();
		bytes = vmtrace_snapshot_size(mm, leader);
		ret = vmtrace_describe_locked(mm, leader,
					      tries < VMTRACE_ROOM_TRIES ?
					      bytes : 0);
		migrate_enable();
		mmap_read_unlock(mm);
		if (ret != -ENOSPC)
			return ret;
		if (vmtrace_rs_make_room(bytes))
			tries = VMTRACE_ROOM_TRIES - 1;
	}
}

static void vmtrace_checkpoint_process(struct task_struct *leader,
				       struct mm_struct *mm, void *arg)
{
	int *ret = arg;
	int done;

	vmtrace_late(VMTRACE_LATE_DESCRIBING);
	if (*ret || !vmtrace_mm_traced(mm))
		return;
	if (vmtrace_rs_ending() || vmtrace_rs_throttle_snapshot()) {
		*ret = -EINTR;
		return;
	}
	done = vmtrace_describe_mm(mm, leader, true);
	if (done < 0)
		*ret = done;
	else
		vmtrace_describe_process(leader, mm, done, VMTRACE_DESCRIBES);
}

/* How long address spaces that are being made are waited for, in ms. */
#define VMTRACE_BIRTH_MS	10000

/**
 * vmtrace_checkpoint - describe all that is traced
 * @header_n: N, as in the header
 * @n: N at present
 * @seq: the number of the event with which the checkpoint begins
 *
 * Nothing changes N or the filter meanwhile, and no window ends. Returns 0; -EINTR if STOP
 * came first; -EAGAIN if there was no room, or an address space was being made for too long.
 * Then the checkpoint has no end, and readers take no notice of it.
 */
int vmtrace_checkpoint(u32 header_n, u32 n, u64 *seq)
{
	int ret = 0, ms;

	if (vmtrace_rs_throttle_snapshot())
		return -EINTR;
	scoped_guard(mutex, &vmtrace_describe_mutex)
		*seq = vmtrace_new_generation();
	if (!*seq)
		return -EAGAIN;
	if (n != header_n)
		vmtrace_log_resize(header_n, n, VMTRACE_DESCRIBES);
	vmtrace_rs_log_filter(VMTRACE_DESCRIBES);
	for (ms = 0; vmtrace_has_unborn(); ms++) {
		if (vmtrace_rs_ending() || fatal_signal_pending(current))
			return -EINTR;
		if (ms == VMTRACE_BIRTH_MS)
			return -EAGAIN;
		fsleep(1000);
	}
	/* Pairs with vmtrace_describe_shared(). */
	smp_mb();
	vmtrace_visit_mms(vmtrace_tree, vmtrace_checkpoint_process, &ret);
	if (ret)
		return ret;
	vmtrace_mark(VMTRACE_EV_CHECKPOINT_END, VMTRACE_DESCRIBES);
	return 0;
}
