// SPDX-License-Identifier: GPL-2.0
/*
 * Virtual memory reference tracing: address spaces that exist already when a
 * trace begins or ends.
 */
#include <linux/delay.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/mutex.h>
#include <linux/pagewalk.h>
#include <linux/pid.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/slab.h>
#include <linux/vmtrace.h>
#include <linux/workqueue.h>
#include <asm/tlbflush.h>

#include "event.h"
#include "internal.h"
#include "late.h"
#include "pte.h"

enum vmtrace_walk {
	WALK_DISABLE,
	WALK_ENABLE,
};

static int vmtrace_walk_pte(pte_t *ptep, unsigned long addr, unsigned long next,
			    struct mm_walk *walk)
{
	switch ((enum vmtrace_walk)(unsigned long)walk->private) {
	case WALK_DISABLE:
		vmtrace_rs_pte_switch(ptep, walk->mm, addr, true);
		break;
	case WALK_ENABLE:
		vmtrace_rs_pte_switch(ptep, walk->mm, addr, false);
		break;
	}
	return 0;
}

static int vmtrace_walk_hugetlb(pte_t *ptep, unsigned long hmask,
				unsigned long addr, unsigned long next,
				struct mm_walk *walk)
{
	return vmtrace_walk_huge(ptep, hmask, addr, next, walk,
				 (unsigned long)walk->private == WALK_DISABLE);
}

/* All mappings: without this, those without struct pages are skipped. */
int vmtrace_walk_test(unsigned long start, unsigned long end,
		      struct mm_walk *walk)
{
	return 0;
}

/* With a pte_entry and no pmd_entry, the walk splits huge PMDs and PUDs. */
static const struct mm_walk_ops vmtrace_disable_ops = {
	.pte_entry	= vmtrace_walk_pte,
	.hugetlb_entry	= vmtrace_walk_hugetlb,
	.test_walk	= vmtrace_walk_test,
	.walk_lock	= PGWALK_WRLOCK_VERIFY,
};

static const struct mm_walk_ops vmtrace_enable_ops = {
	.pte_entry	= vmtrace_walk_pte,
	.hugetlb_entry	= vmtrace_walk_hugetlb,
	.test_walk	= vmtrace_walk_test,
	.walk_lock	= PGWALK_RDLOCK,
};

/*
 * To disable, mmap_lock is held for writing and all VMAs are locked, so no fault that
 * locks its VMA is under way. __vmtrace_touch() locks none, and admits nothing: the
 * address space has no number yet, or its count of writers has changed. To enable it is held for reading: a fault that leaves a PTE
 * disabled behind the walk does no harm, for that PTE heals on touch.
 */
static void vmtrace_walk_mm(struct mm_struct *mm, enum vmtrace_walk what)
{
	walk_page_range(mm, 0, TASK_SIZE,
			what == WALK_DISABLE ? &vmtrace_disable_ops :
					       &vmtrace_enable_ops,
			(void *)(unsigned long)what);
}

/* Returns -EINTR if @killable and a fatal signal came first. */
static int vmtrace_lock_mm(struct mm_struct *mm, bool killable)
{
	VMA_ITERATOR(vmi, mm, 0);
	struct vm_area_struct *vma;

	if (!killable)
		mmap_write_lock(mm);
	else if (mmap_write_lock_killable(mm))
		return -EINTR;
	for_each_vma(vmi, vma) {
		if (!killable) {
			vma_start_write(vma);
		} else if (vma_start_write_killable(vma)) {
			mmap_write_unlock(mm);
			return -EINTR;
		}
	}
	return 0;
}

/*
 * How often all locks together are tried for, at the end of a trace. STOP answers
 * within two seconds, of which it waits one for the output; the audit and the
 * detaching try so often each.
 */
#define VMTRACE_TRIES	100

/*
 * Lock an address space for reading, if it is not locked for long: whoever has
 * it may wait for the output of the trace, or for what hangs like that. @tries
 * counts how often it was tried, a ms each, for this one and others.
 */
bool vmtrace_read_lock(struct mm_struct *mm, u32 *tries)
{
	while (!mmap_read_trylock(mm)) {
		if (*tries >= VMTRACE_TRIES)
			return false;
		++*tries;
		fsleep(1000);
	}
	return true;
}

/* Hold the threads of a process, after the first @skip. Returns how many are @held, up to @room. */
static int vmtrace_hold_threads(struct task_struct *leader, int skip,
				struct task_struct **held, int room)
{
	struct task_struct *t;
	int at = 0, n = 0;

	guard(rcu)();
	for_each_thread(leader, t) {
		if (at++ < skip)
			continue;
		if (n == room)
			break;
		get_task_struct(t);
		held[n++] = t;
	}
	return n;
}

/*
 * Do @what to every thread of a process. The event may wait for room, so no thread list is
 * held meanwhile. All threads are held instead. Without memory for that, they are held in
 * parts, and some may be missed if others exit.
 */
void vmtrace_visit_threads(struct task_struct *leader, struct mm_struct *mm,
			   vmtrace_thread_fn *what, u32 flags)
{
	struct task_struct *few[16], **held = few;
	int i, n, skip = 0, room = ARRAY_SIZE(few);

	n = vmtrace_hold_threads(leader, 0, few, room);
	while (n == room) {
		struct task_struct **more;

		/* The output may need what is locked here, so nothing waits for it. */
		more = kvmalloc_array(2 * room, sizeof(*more),
				      GFP_NOIO | __GFP_NOWARN);
		if (!more)
			break;
		for (i = 0; i < n; i++)
			put_task_struct(held[i]);
		if (held != few)
			kvfree(held);
		held = more;
		room *= 2;
		n = vmtrace_hold_threads(leader, 0, held, room);
	}
	for (;;) {
		for (i = 0; i < n; i++) {
			what(held[i], mm, flags);
			put_task_struct(held[i]);
		}
		if (n < room)
			break;
		skip += n;
		vmtrace_late(VMTRACE_LATE_DESCRIBING);
		n = vmtrace_hold_threads(leader, skip, held, room);
	}
	if (held != few)
		kvfree(held);
}

/*
 * The address space that has a number with references, while its enabled PTEs are
 * still being looked for. Faults are kept out, but reclaim and migration, which come
 * by rmap, are not: what they clear then is not funny.
 *
 * Lock order: mmap_lock -> this mutex -> page table lock.
 */
static DEFINE_MUTEX(vmtrace_attach_mutex);
static struct mm_struct *vmtrace_attaching;

static void vmtrace_attach_begin(struct mm_struct *mm)
{
	mutex_lock(&vmtrace_attach_mutex);
	WRITE_ONCE(vmtrace_attaching, mm);
	/* Before the number, with vmtrace_is_attaching(). */
	smp_wmb();
}

static void vmtrace_attach_end(void)
{
	WRITE_ONCE(vmtrace_attaching, NULL);
	mutex_unlock(&vmtrace_attach_mutex);
}

/*
 * Whether an enabled PTE of @mm can be one of before. The lock of that PTE is held,
 * so it has not been looked at yet if it is.
 */
bool vmtrace_is_attaching(const struct mm_struct *mm)
{
	/* After the number, with vmtrace_attach_begin(). */
	smp_rmb();
	return READ_ONCE(vmtrace_attaching) == mm &&
	       !vmtrace_broken(VMTRACE_BREAK_NOORDER);
}

/* References are recorded from here on: PTEs are born disabled, and these found. */
static void vmtrace_disable_mm(struct mm_struct *mm)
{
	vmtrace_late(VMTRACE_LATE_ATTACHING);
	vmtrace_unshare(mm);
	if (!vmtrace_broken(VMTRACE_BREAK_NOATTACH))
		vmtrace_walk_mm(mm, WALK_DISABLE);
	vmtrace_late(VMTRACE_LATE_ATTACHED);
	flush_tlb_mm(mm);
}

/* Describe an address space that is locked, and trace it from here on. */
static bool vmtrace_attach_locked(struct mm_struct *mm,
				  struct task_struct *leader, u32 era)
{
	bool done;

	vmtrace_attach_begin(mm);
	done = vmtrace_snapshot_mm(mm, leader ?: current, era);
	if (done && leader)
		vmtrace_visit_threads(leader, mm, vmtrace_snapshot_task,
				      VMTRACE_EVF_SNAPSHOT);
	if (done && vmtrace_mm_refs(mm))
		vmtrace_disable_mm(mm);
	vmtrace_attach_end();
	return done;
}

/* How often room is made for what has grown meanwhile. */
#define VMTRACE_ROOM_TRIES	8

/*
 * Trace an address space from here on, if it is not. The threads of @leader are
 * in it. Events describe them before the first of them can fault, and
 * vmtrace_fork() describes the tasks that they create from the numbering on.
 * @leader is NULL if a separate event follows. Returns 1 if the address space was
 * traced already, perhaps because somebody else was faster: then nothing was
 * described. Returns -EINTR if @killable and a fatal signal came first, or -ESTALE if
 * @era is over.
 *
 * All mappings are described under one hold of mmap_lock, so that nothing changes
 * meanwhile. The output may need that lock, so nothing waits for the output under
 * it: room for all of the events is made before, without the lock. Without memory
 * for that, events that find no room are lost and counted.
 */
int vmtrace_attach_mm(struct mm_struct *mm, struct task_struct *leader,
		      bool killable, u32 era)
{
	int tries, ret;
	bool done;
	u64 bytes;

	for (tries = 0;; tries++) {
		if (vmtrace_lock_mm(mm, killable))
			return -EINTR;
		/* The ring of this CPU is that of the events. */
		migrate_disable();
		bytes = vmtrace_snapshot_size(mm, leader);
		ret = vmtrace_mm_traced(mm);
		done = ret || tries == VMTRACE_ROOM_TRIES ||
		       vmtrace_rs_has_room(bytes);
		if (done && !ret && !vmtrace_attach_locked(mm, leader, era))
			ret = -ESTALE;
		migrate_enable();
		mmap_write_unlock(mm);
		if (done)
			return ret;
		if (vmtrace_rs_make_room(bytes))
			tries = VMTRACE_ROOM_TRIES - 1;
	}
}

/* Record references, too, if that has begun and this one was missed. */
int vmtrace_refs_mm(struct mm_struct *mm, bool killable)
{
	if (READ_ONCE(vmtrace_quiet) || !vmtrace_mm_traced(mm) ||
	    vmtrace_mm_refs(mm))
		return 0;
	if (vmtrace_lock_mm(mm, killable))
		return -EINTR;
	if (vmtrace_mm_traced(mm) && !vmtrace_mm_refs(mm)) {
		vmtrace_attach_begin(mm);
		vmtrace_give_set(mm);
		vmtrace_disable_mm(mm);
		vmtrace_attach_end();
	}
	mmap_write_unlock(mm);
	return 0;
}

static void vmtrace_refs_process(struct task_struct *leader,
				 struct mm_struct *mm, void *arg)
{
	int *ret = arg;

	if (!*ret && !vmtrace_rs_ending())
		*ret = vmtrace_refs_mm(mm, true);
}

/**
 * vmtrace_begin_refs - record references of what was traced without them
 *
 * What is made meanwhile either has them from its birth or is found by
 * vmtrace_fork() and vmtrace_exec(). Returns -EINTR if STOP came first. May sleep, and
 * takes mmap_lock of what it visits: the caller holds no lock of the hooks.
 */
int vmtrace_begin_refs(void)
{
	int ret = 0;

	vmtrace_mark(VMTRACE_EV_REFS_BEGIN, 0);
	/* Who finds this cleared finds the sets, too. */
	smp_store_release(&vmtrace_quiet, 0);
	vmtrace_visit_mms(0, vmtrace_refs_process, &ret);
	return vmtrace_rs_ending() ? -EINTR : ret;
}

/* Who waits for the beginning of a trace never traces itself. */
static struct mm_struct *vmtrace_spared;

/**
 * vmtrace_spare - whether the caller is spared by vmtrace_attach()
 * @spare: it is, for as long as it is here
 */
void vmtrace_spare(bool spare)
{
	WRITE_ONCE(vmtrace_spared, spare ? current->mm : NULL);
}

bool vmtrace_is_spared(const struct mm_struct *mm)
{
	return mm == READ_ONCE(vmtrace_spared);
}

/* For what needs no lock. */
static void vmtrace_describe_task(struct task_struct *task,
				  struct mm_struct *mm, u32 flags)
{
	if (!vmtrace_rs_throttle_snapshot())
		vmtrace_snapshot_task(task, mm, flags);
}

/* Describe a process whose address space is described, but for its tasks if @tasks. */
void vmtrace_describe_process(struct task_struct *leader, struct mm_struct *mm,
			      bool tasks, u32 flags)
{
	if (tasks)
		vmtrace_visit_threads(leader, mm, vmtrace_describe_task, flags);
	/*
	 * A file that is opened from the numbering on has an event of its own,
	 * and may get a second one here.
	 */
	vmtrace_visit_threads(leader, mm, vmtrace_snapshot_files, flags);
	vmtrace_log_cgroup(leader, vmtrace_mm_id(mm), flags);
}

static void vmtrace_attach_process(struct task_struct *leader,
				   struct mm_struct *mm, void *arg)
{
	int *ret = arg;
	int done;

	if (vmtrace_is_spared(mm) || *ret)
		return;
	/* The snapshot of many processes is more than the rings hold. */
	if (vmtrace_rs_ending() || vmtrace_rs_throttle_snapshot()) {
		*ret = -EINTR;
		return;
	}
	done = vmtrace_mm_traced(mm);
	/* The era goes on meanwhile: whoever ends it waits for this. */
	if (!done)
		done = vmtrace_attach_mm(mm, leader, true, vmtrace_this_era());
	if (done < 0) {
		*ret = done;
		return;
	}
	/* By another process that is in it, as its parent's copy, or by exec. */
	vmtrace_describe_process(leader, mm, done, VMTRACE_EVF_SNAPSHOT);
}

/*
 * Describe a process whose id an earlier visit had passed, see vmtrace_passed(). Its
 * address space may be attached already, because another process shares it, or because
 * exec has attached the process's own one.
 */
static void vmtrace_attach_passed(struct task_struct *leader,
				  struct mm_struct *mm, void *arg)
{
	const u32 era = vmtrace_this_era();

	/* Only once for each mark. */
	if (cmpxchg(&leader->vmtrace_passed, era, 0) == era ||
	    !vmtrace_mm_traced(mm))
		vmtrace_attach_process(leader, mm, arg);
}

/*
 * What stays locked is left as it is: its PTEs heal on touch. Without references, few PTEs are
 * disabled or none, and the walk would split transparent huge pages.
 */
static void vmtrace_detach_mm(struct task_struct *leader, struct mm_struct *mm,
			      void *arg)
{
	bool refs;

	if (!vmtrace_mm_traced(mm) || !vmtrace_read_lock(mm, arg))
		return;
	if (vmtrace_mm_traced(mm)) {
		refs = vmtrace_mm_refs(mm);
		WRITE_ONCE(mm->vmtrace_id, 0);
		vmtrace_late(VMTRACE_LATE_DETACHING);
		if (refs)
			vmtrace_walk_mm(mm, WALK_ENABLE);
	}
	mmap_read_unlock(mm);
}

/* The next process with an id of at least *@nr, held. */
static struct task_struct *vmtrace_next_process(pid_t *nr)
{
	struct task_struct *task = NULL;
	struct pid *pid;

	rcu_read_lock();
	while ((pid = find_ge_pid(*nr, &init_pid_ns))) {
		*nr = pid_nr(pid) + 1;
		task = pid_task(pid, PIDTYPE_TGID);
		if (task) {
			get_task_struct(task);
			break;
		}
	}
	rcu_read_unlock();
	return task;
}

/* The address space of a process whose leader may have exited. */
static struct mm_struct *vmtrace_process_mm(struct task_struct *leader)
{
	struct mm_struct *mm = NULL;
	struct task_struct *t;

	rcu_read_lock();
	for_each_thread(leader, t) {
		mm = get_task_mm(t);
		if (mm)
			break;
	}
	rcu_read_unlock();
	return mm;
}

/* Do @what to every address space, or to those of a tree with that number, and @put it. */
static void vmtrace_visit(u32 tree, vmtrace_process_fn *what, void *arg,
			  void (*put)(struct mm_struct *mm))
{
	struct task_struct *task;
	struct mm_struct *mm;
	pid_t nr = 1;

	while ((task = vmtrace_next_process(&nr))) {
		if (!(task->flags & PF_KTHREAD) && vmtrace_in_tree(task, tree)) {
			mm = vmtrace_process_mm(task);
			while (mm) {
				struct mm_struct *next;

				what(task, mm, arg);
				/* Another one, if exec has left this. */
				next = vmtrace_process_mm(task);
				put(mm);
				if (next == mm) {
					put(next);
					break;
				}
				mm = next;
			}
		}
		put_task_struct(task);
		cond_resched();
	}
}

/* Do @what to every address space, or to those of a tree with that number. */
void vmtrace_visit_mms(u32 tree, vmtrace_process_fn *what, void *arg)
{
	vmtrace_visit(tree, what, arg, mmput);
}

/*
 * Do @what to every address space. If its last user goes meanwhile, what is left to do for that
 * may wait for a disk, so it is not done here.
 */
void vmtrace_visit_mms_later(vmtrace_process_fn *what, void *arg)
{
	vmtrace_visit(0, what, arg, mmput_async);
}

/*
 * Turning the hooks on or off patches the kernel's text, which interrupts all CPUs
 * several times. So the hooks stay on for some time after a trace: they find no
 * traced address space, as between windows, and a trace that begins meanwhile
 * patches nothing but what it does in another way than the one before: virtual
 * time.
 */
#define VMTRACE_UNHOOK_DELAY	(10 * HZ)

/* Lock order: this mutex -> cpus_read_lock() and jump_label_mutex. */
static DEFINE_MUTEX(vmtrace_hook_mutex);
static bool vmtrace_hooks_wanted;

static void vmtrace_unhook_work(struct work_struct *work)
{
	guard(mutex)(&vmtrace_hook_mutex);
	if (!vmtrace_hooks_wanted)
		static_branch_disable(&vmtrace_key);
}
static DECLARE_DELAYED_WORK(vmtrace_unhook_later, vmtrace_unhook_work);

static void vmtrace_hooks_on(void)
{
	cancel_delayed_work(&vmtrace_unhook_later);
	guard(mutex)(&vmtrace_hook_mutex);
	vmtrace_hooks_wanted = true;
	static_branch_enable(&vmtrace_used_key);
	static_branch_enable(&vmtrace_key);
}

/* What vmtrace_detach() leaves to the end of a trace with windows. The context may sleep. */
void vmtrace_unhook(void)
{
	guard(mutex)(&vmtrace_hook_mutex);
	vmtrace_hooks_wanted = false;
	schedule_delayed_work(&vmtrace_unhook_later, VMTRACE_UNHOOK_DELAY);
}

/**
 * vmtrace_attach - trace what exists
 * @refs: references, too, and not events only
 * @marks: the trace has windows with references and others, so an event is to say that
 *
 * That is, what vmtrace_set_scope() said. Returns -EINTR if STOP came first: then not
 * all is traced. The thread of the trace calls this, on which nothing depends; and
 * the first process, before there is any other. May sleep, as vmtrace_begin_refs().
 */
int vmtrace_attach(bool refs, bool marks)
{
	int ret = 0;

	vmtrace_late(VMTRACE_LATE_OPENING);
	vmtrace_new_ids();
	WRITE_ONCE(vmtrace_quiet, refs ? 0 : VMTRACE_ID_QUIET);
	vmtrace_hooks_on();
	vmtrace_mark(VMTRACE_EV_SNAP_BEGIN, VMTRACE_EVF_SNAPSHOT);
	if (refs && marks)
		vmtrace_mark(VMTRACE_EV_REFS_BEGIN, 0);
	if (!vmtrace_tree)
		WRITE_ONCE(vmtrace_scope_all, true);
	/* The hooks find the roots that come from here on. */
	vmtrace_find_roots();
	vmtrace_ran_look();
	WRITE_ONCE(vmtrace_again, false);
	WRITE_ONCE(vmtrace_visited, true);
	/* Pairs with vmtrace_join(): vmtrace_visited is set before the visit. */
	smp_mb();
	vmtrace_visit_mms(vmtrace_tree, vmtrace_attach_process, &ret);
	while (!ret && READ_ONCE(vmtrace_again))
		ret = vmtrace_attach_joined();
	vmtrace_mark(VMTRACE_EV_SNAP_END, VMTRACE_EVF_SNAPSHOT);
	return ret;
}

/**
 * vmtrace_attach_joined - trace what is to be traced, and nobody has attached
 *
 * That is what vmtrace_look_again() was called for until now. Returns as vmtrace_attach().
 */
int vmtrace_attach_joined(void)
{
	int ret = vmtrace_rs_ending() ? -EINTR : 0;

	if (!ret && xchg(&vmtrace_again, false)) {
		vmtrace_visit_mms(vmtrace_tree, vmtrace_attach_passed, &ret);
		vmtrace_ran_look();
	}
	return ret;
}

/*
 * The set is empty and no admission is possible: let go of all. No lock of the hooks is held, and
 * the context may sleep.
 */
void vmtrace_detach(bool last)
{
	u32 tries = 0;

	WRITE_ONCE(vmtrace_scope_all, false);
	WRITE_ONCE(vmtrace_visited, false);
	vmtrace_visit_mms(0, vmtrace_detach_mm, &tries);
	/* PTEs of an exiting task or of a fork in progress heal on touch. */
	vmtrace_new_ids();
	vmtrace_rs_ended();
	if (last)
		vmtrace_unhook();
}

/*
 * Wait for admissions that are on the way: they run without preemption. The oracle looks
 * for this function, to learn when this is.
 */
void vmtrace_quiesce(void)
{
	synchronize_rcu_expedited();
}
