// SPDX-License-Identifier: GPL-2.0
/*
 * Virtual memory reference tracing: events. Each hook gathers plain values and
 * hands them to a ring of events. Callers hold the lock that makes the event
 * true (mmap_lock, page table lock), so the order of the trace is the order in
 * which things happened.
 */
#include <linux/cgroup.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/hugetlb.h>
#include <linux/mman.h>
#include <linux/mm.h>
#include <linux/sched/cputime.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/shmem_fs.h>
#include <linux/vmtrace.h>

#include "event.h"
#include "internal.h"
#include "late.h"
#include "pte.h"

bool vmtrace_scope_all;
bool vmtrace_visited;
bool vmtrace_again;

/*
 * An era is the time between two calls of vmtrace_new_ids(), which begin and end a
 * trace or a window. Numbers of address spaces are valid until their era ends. The
 * reason for a number is one of these:
 *
 *  - vmtrace_attach() visits a task that uses the address space.
 *  - The address space is made by a task whose own is traced, or while everything is
 *    traced.
 *  - The address space is made for a task that is to be traced, after
 *    vmtrace_attach() has begun its visit, even if the address space of the task's
 *    creator has no number yet: the visit is in the order of ids, and may have passed
 *    the new task's id before it comes to the creator.
 *
 * A task gives a number only in the era in which it has seen the reason. A number that
 * came later would be valid at two wrong times: while the set is sealed, so that faults
 * enable pages without a record; and after the next set is open, until
 * vmtrace_new_ids() is called.
 *
 * Lock order: mmap_lock -> this lock.
 */
static DEFINE_SPINLOCK(vmtrace_id_lock);
static u32 vmtrace_last_id;
static u32 vmtrace_era;

/*
 * A generation is the time between two checkpoints, or from one to the beginning or the
 * end of an era. What is left of a checkpoint when its first event has been logged is to
 * describe the address spaces of earlier generations. mm_struct.vmtrace_described is the
 * generation in which an address space was described last, or in which it was made if
 * events describe all of it: see vmtrace_ev_checkpoint.
 *
 * Before a checkpoint visits tasks, it waits until each address space of the last
 * generation has a task that can be found, or has ended. These are counted, by the last
 * bit of the generation; mm_struct.vmtrace_unborn is the one that an address space is
 * counted in. A checkpoint that has waited for too long is given up, and the next one
 * waits for the same address spaces before its generation begins. So no two generations
 * are counted in the same place.
 */
static u32 vmtrace_generation = 2;
static u32 vmtrace_unborn[2];

/* Returns the number of its record, or ~0 if there is none. */
static u64 vmtrace_emit_event(const struct vmtrace_event_in *e)
{
	u64 seq;

	/*
	 * Seen by a hook before its trace or its window ended. Such an event is no
	 * tracepoint's either. The ring decides again, under its lock.
	 */
	if (e->mm && e->mm < READ_ONCE(vmtrace_first_id))
		return ~0ULL;
	vmtrace_late(VMTRACE_LATE_LOGGING);
	seq = vmtrace_rs_event(e);
	vmtrace_trace_event(seq, e->mm, e->type, e->payload, e->name);
	vmtrace_late(VMTRACE_LATE_LOGGED);
	return seq;
}

u64 vmtrace_emit_for(struct task_struct *task, u32 mm, unsigned int type,
		     const void *payload, size_t len, const char *name,
		     bool may_sleep, u32 flags)
{
	const struct vmtrace_event_in e = {
		.type = type,
		.payload_len = len,
		.name_len = name ? strnlen(name, VMTRACE_NAME_MAX) : 0,
		.may_sleep = may_sleep,
		.flags = flags,
		.tid = task_pid_nr(task),
		.tgid = task_tgid_nr(task),
		.mm = mm,
		.vtime = task == current ? task->vmtrace_vtime :
					   VMTRACE_VTIME_NONE,
		.payload = payload,
		.name = name,
	};

	return vmtrace_emit_event(&e);
}

/* For a task that may have ended meanwhile. The context may sleep. */
void vmtrace_emit_request(const struct vmtrace_request *request,
			  unsigned int type, const void *payload, size_t len)
{
	const struct vmtrace_event_in e = {
		.type = type,
		.payload_len = len,
		.may_sleep = true,
		.tid = request->tid,
		.tgid = request->tgid,
		.mm = request->mm,
		.vtime = VMTRACE_VTIME_NONE,
		.payload = payload,
	};

	vmtrace_emit_event(&e);
}

/*
 * The address space that what this task does is logged for, 0 if none. Files
 * that stay open to the end are closed when it has been left already.
 */
u32 vmtrace_own_mm(void)
{
	u32 id;

	if (current->mm)
		return vmtrace_mm_id(current->mm);
	id = current->vmtrace_mm;
	return id >= READ_ONCE(vmtrace_first_id) ? id : 0;
}

void __vmtrace_slow __vmtrace_why_begin(unsigned int why)
{
	current->vmtrace_why = current->vmtrace_why << 4 | why;
}

void __vmtrace_slow __vmtrace_why_end(void)
{
	current->vmtrace_why >>= 4;
}

/* VMTRACE_WHY_* of what this task does. */
unsigned int vmtrace_why(void)
{
	return (current->vmtrace_why & 0xf) ?: VMTRACE_WHY_OTHER;
}

static u32 vmtrace_prot(vm_flags_t vm_flags)
{
	return (vm_flags & VM_READ ? VMTRACE_PROT_READ : 0) |
	       (vm_flags & VM_WRITE ? VMTRACE_PROT_WRITE : 0) |
	       (vm_flags & VM_EXEC ? VMTRACE_PROT_EXEC : 0);
}

/* VMTRACE_MAP_* of a mapping, except of a special one that looks anonymous. */
u32 vmtrace_map_kind(const struct vm_area_struct *vma)
{
	const struct inode *inode;

	if (!vma->vm_file)
		return vma_is_anonymous(vma) ? VMTRACE_MAP_ANON :
					       VMTRACE_MAP_SPECIAL;
	inode = file_inode(vma->vm_file);
	if (vma->vm_flags & VM_HUGETLB)
		return VMTRACE_MAP_HUGETLB;
	if (shmem_mapping(inode->i_mapping))
		return VMTRACE_MAP_SHMEM;
	return S_ISREG(inode->i_mode) ? VMTRACE_MAP_FILE : VMTRACE_MAP_DEVICE;
}

/* Of a mapping without a file; NULL if it has no name. */
const char *vmtrace_special_name(struct vm_area_struct *vma)
{
	return vma->vm_ops && vma->vm_ops->name ? vma->vm_ops->name(vma) : NULL;
}

static void vmtrace_emit_map(struct vm_area_struct *vma, unsigned long start,
			     unsigned long end, unsigned int cause, u32 flags)
{
	struct vmtrace_ev_map m = {
		.start = start,
		.end = end,
		.prot = vmtrace_prot(vma->vm_flags),
		.kind = vmtrace_map_kind(vma),
		.cause = cause,
	};
	const char *name = NULL;
	struct name_snapshot snap;

	m.offset = ((u64)vma_start_pgoff(vma) << PAGE_SHIFT) +
		   (start - vma->vm_start);
	if (vma->vm_flags & VM_SHARED)
		m.flags |= VMTRACE_MAP_SHARED;
	if (vma->vm_flags & VM_GROWSDOWN)
		m.flags |= VMTRACE_MAP_GROWSDOWN;
	if (vma->vm_flags & VM_LOCKED)
		m.flags |= VMTRACE_MAP_LOCKED;
	if (vma->vm_flags & (VM_PFNMAP | VM_MIXEDMAP))
		m.flags |= VMTRACE_MAP_PFN;
	if (vma->vm_flags & VM_HUGETLB)
		m.flags |= huge_page_shift(hstate_vma(vma))
			   << VMTRACE_MAP_PAGE_SHIFT;
	if (vma->vm_flags & VM_MERGEABLE)
		m.flags |= VMTRACE_MAP_MERGEABLE;

	if (vma->vm_file) {
		struct inode *inode = file_inode(vma->vm_file);

		m.dev = vmtrace_dev(inode);
		m.ino = inode->i_ino;
		m.generation = inode->i_generation;
		take_dentry_name_snapshot(&snap, vma->vm_file->f_path.dentry);
		name = snap.name.name;
	} else if (cause == VMTRACE_BY_SPECIAL || m.kind != VMTRACE_MAP_ANON) {
		m.kind = VMTRACE_MAP_SPECIAL;
		name = vmtrace_special_name(vma);
	}
	m.name_len = name ? strnlen(name, VMTRACE_NAME_MAX) : 0;
	/* Room for a snapshot was made before: see vmtrace_attach_mm(). */
	vmtrace_emit(vmtrace_number(vma->vm_mm), VMTRACE_EV_MAP, &m, sizeof(m),
		     name, cause != VMTRACE_BY_SNAPSHOT, flags);
	if (vma->vm_file)
		release_dentry_name_snapshot(&snap);
}

/* A stack that exec fills is logged when it has found its place. */
bool vmtrace_stack_incomplete(unsigned long vm_flags)
{
	return (vm_flags & VM_STACK_INCOMPLETE_SETUP) ==
	       VM_STACK_INCOMPLETE_SETUP;
}

void __vmtrace_slow __vmtrace_map(struct vm_area_struct *vma,
				  unsigned long start, unsigned long end,
				  unsigned int cause)
{
	if (vmtrace_mm_traced(vma->vm_mm) &&
	    !vmtrace_stack_incomplete(vma->vm_flags))
		vmtrace_emit_map(vma, start, end, cause, 0);
}

void __vmtrace_slow __vmtrace_unmap(struct mm_struct *mm, unsigned long start,
				    unsigned long end)
{
	struct vmtrace_ev_range r = { .start = start, .end = end };

	/* The move's own event describes the end of a move. */
	if (start == end || !vmtrace_mm_traced(mm) ||
	    vmtrace_why() == VMTRACE_WHY_MOVED)
		return;
	vmtrace_emit(vmtrace_number(mm), VMTRACE_EV_UNMAP, &r, sizeof(r), NULL,
		     true, 0);
}

void __vmtrace_slow __vmtrace_move(struct mm_struct *mm,
				   unsigned long old_start,
				   unsigned long old_len,
				   unsigned long new_start,
				   unsigned long new_len, bool dontunmap)
{
	struct vmtrace_ev_move m = {
		.old_start = old_start,
		.old_len = old_len,
		.new_start = new_start,
		.new_len = new_len,
		.flags = dontunmap ? VMTRACE_MOVE_DONTUNMAP : 0,
	};

	if (vmtrace_mm_traced(mm))
		vmtrace_emit(vmtrace_number(mm), VMTRACE_EV_MOVE, &m, sizeof(m),
			     NULL, true, 0);
}

void __vmtrace_slow __vmtrace_protected(struct vm_area_struct *vma,
					unsigned long start, unsigned long end)
{
	struct vmtrace_ev_range r = {
		.start = start,
		.end = end,
		.arg = vmtrace_prot(vma->vm_flags),
	};

	__vmtrace_why_end();
	if (!vmtrace_enabled() || !vmtrace_mm_traced(vma->vm_mm) ||
	    vmtrace_stack_incomplete(vma->vm_flags))
		return;
	vmtrace_emit(vmtrace_number(vma->vm_mm), VMTRACE_EV_PROTECT, &r, sizeof(r),
		     NULL, true, 0);
}

void __vmtrace_slow __vmtrace_advise(struct mm_struct *mm, unsigned long start,
				     unsigned long end, int advice)
{
	struct vmtrace_ev_range r = {
		.start = start,
		.end = end,
		.arg = advice,
	};

	if (!vmtrace_mm_traced(mm))
		return;
	vmtrace_emit(vmtrace_number(mm), VMTRACE_EV_ADVISE, &r, sizeof(r), NULL,
		     true, 0);
	/*
	 * Faults went on while the pages were dropped, and end at the guards until
	 * somebody removes these.
	 */
	if (advice == MADV_GUARD_INSTALL)
		vmtrace_rs_drop_logged();
}

void __vmtrace_slow __vmtrace_cow(struct mm_struct *mm, unsigned long addr,
				  unsigned long old_pfn,
				  unsigned long new_pfn)
{
	struct vmtrace_ev_page p = {
		.page = addr & PAGE_MASK,
		.old_pfn = old_pfn,
		.new_pfn = new_pfn,
	};

	if (vmtrace_mm_traced(mm))
		vmtrace_emit(vmtrace_number(mm), VMTRACE_EV_COW, &p, sizeof(p),
			     NULL, false, 0);
}

/* The present era. Read it before you look for a reason. */
u32 vmtrace_this_era(void)
{
	/* The reasons of an earlier era are gone: see vmtrace_new_ids(). */
	return smp_load_acquire(&vmtrace_era);
}

u32 vmtrace_sets;

/*
 * The control group (version 2) of a task, as the inode number of its directory. 0 if sets are
 * not those of groups.
 */
static u64 vmtrace_group(struct task_struct *task)
{
	if (READ_ONCE(vmtrace_sets) != VMTRACE_SETS_CGROUP)
		return 0;
#ifdef CONFIG_CGROUPS
	guard(rcu)();
	return cgroup_id(task_dfl_cgroup(task));
#else
	return 0;
#endif
}

/* Log the set of an address space, if it is not set 0. */
void vmtrace_log_set(struct mm_struct *mm, u32 set, u64 group, u32 flags)
{
	struct vmtrace_ev_set s = { .set = set, .cgroup = group };

	if (set)
		vmtrace_emit(vmtrace_number(mm), VMTRACE_EV_SET, &s, sizeof(s),
			     NULL, !(flags & VMTRACE_EVF_SNAPSHOT), flags);
}

/*
 * Number an address space of @task, and give it its set. Its number makes both valid. False
 * if @era is over. @unborn: no task uses it yet.
 */
static bool vmtrace_give_id(struct mm_struct *mm, struct task_struct *task,
			    u32 era, u32 flags, bool unborn)
{
	/*
	 * While this is set, there may be no sets yet. It is cleared after they are there:
	 * see vmtrace_begin_refs().
	 */
	const u32 quiet = smp_load_acquire(&vmtrace_quiet);
	const u64 group = vmtrace_group(task);
	bool given = false;
	u32 set = 0;

	/* The output may need mmap_lock, which may be held. So nothing waits for a disk. */
	if (!quiet) {
		unsigned int noio = memalloc_noio_save();

		set = vmtrace_rs_enter(mm, group);
		memalloc_noio_restore(noio);
	}
	vmtrace_late(VMTRACE_LATE_NUMBERING);
	scoped_guard(spinlock, &vmtrace_id_lock) {
		if (era != vmtrace_era)
			break;
		vmtrace_rs_mm();
		/* The checkpoints to come describe it, and none that is under way. */
		WRITE_ONCE(mm->vmtrace_described, vmtrace_generation);
		if (unborn) {
			mm->vmtrace_unborn = vmtrace_generation;
			vmtrace_unborn[vmtrace_generation & 1]++;
		}
		/* After the set, for those who look at both without a lock. */
		smp_store_release(&mm->vmtrace_id, ++vmtrace_last_id | quiet);
		given = true;
	}
	if (given)
		vmtrace_log_set(mm, set, group, flags);
	else
		vmtrace_rs_leave(mm);
	return given;
}

/* A task that can be found uses @mm, or @mm is about to end. */
static void vmtrace_born(struct mm_struct *mm)
{
	guard(spinlock)(&vmtrace_id_lock);
	/* Those of earlier eras are not counted any more. */
	if (mm->vmtrace_unborn && vmtrace_generation - mm->vmtrace_unborn <= 1)
		vmtrace_unborn[mm->vmtrace_unborn & 1]--;
	mm->vmtrace_unborn = 0;
}

/* Only what had no user has not been born, so this is process context. */
void __vmtrace_slow __vmtrace_mm_free(struct mm_struct *mm)
{
	if (mm->vmtrace_unborn)
		vmtrace_born(mm);
}

/*
 * References of @mm are recorded from here on, too: its number is one of those without.
 * Faults are kept out.
 */
void vmtrace_give_set(struct mm_struct *mm)
{
	/* A trace from boot has one set. */
	vmtrace_rs_enter(mm, 0);
	/* After the set: see vmtrace_give_id(). */
	smp_store_release(&mm->vmtrace_id, vmtrace_number(mm));
}

/* Whether new address spaces of the current task are traced. */
static bool vmtrace_traces_new(void)
{
	return READ_ONCE(vmtrace_scope_all) ||
	       (current->mm && vmtrace_mm_traced(current->mm));
}

void __vmtrace_slow __vmtrace_mm_init(struct mm_struct *mm)
{
	const u32 era = vmtrace_this_era();

	/* One that gets no number here is attached by vmtrace_join(). */
	if (!vmtrace_traces_new() ||
	    !vmtrace_give_id(mm, current, era, 0, true))
		return;
	vmtrace_late(VMTRACE_LATE_MADE);
	if (!current->mm || vmtrace_broken(VMTRACE_BREAK_NODESCRIBE))
		return;
	/*
	 * It may become a copy of that of the current task. If a checkpoint is under way
	 * that will not describe the copy, what it is a copy of is to be described first.
	 */
	if (READ_ONCE(current->mm->vmtrace_described) != mm->vmtrace_described)
		vmtrace_describe_mm(current->mm, current->group_leader, false);
}

void __vmtrace_slow __vmtrace_mm_dup(struct mm_struct *mm,
				     struct mm_struct *oldmm)
{
	VMA_ITERATOR(vmi, oldmm, 0);
	struct vmtrace_ev_mm_dup d = { .parent = vmtrace_mm_id(oldmm) };
	struct vm_area_struct *vma;

	if (!vmtrace_mm_traced(mm))
		return;
	/*
	 * Everything is traced from here on, and @oldmm has not been attached yet. No
	 * event can describe what the copy maps, so __vmtrace_fork() attaches the
	 * copy separately.
	 */
	if (!d.parent) {
		WRITE_ONCE(mm->vmtrace_id, 0);
		vmtrace_rs_leave(mm);
		return;
	}
	vmtrace_emit(vmtrace_number(mm), VMTRACE_EV_MM_DUP, &d, sizeof(d), NULL,
		     true, 0);
	/*
	 * Whoever knows the one knows the other from here on, unless the events of the
	 * other's number and set came before a checkpoint. The visit finds it then.
	 */
	WRITE_ONCE(mm->vmtrace_described, min(mm->vmtrace_described,
					      oldmm->vmtrace_described));
	for_each_vma(vmi, vma) {
		struct vmtrace_ev_range r = {
			.start = vma->vm_start,
			.end = vma->vm_end,
		};

		if (vma->vm_flags & VM_DONTCOPY)
			vmtrace_emit(vmtrace_number(mm), VMTRACE_EV_UNMAP, &r,
				     sizeof(r), NULL, true, 0);
	}
}

void __vmtrace_slow __vmtrace_mm_end(struct mm_struct *mm)
{
	/* It may have been traced when its members were found. */
	vmtrace_wait_unused();
	if (mm->vmtrace_unborn)
		vmtrace_born(mm);
	if (!vmtrace_mm_traced(mm))
		return;
	vmtrace_emit(vmtrace_number(mm), VMTRACE_EV_MM_END, NULL, 0, NULL, true, 0);
	vmtrace_rs_leave(mm);
}

/* Whether a number belongs to the present era. */
static bool vmtrace_is_valid(u32 id)
{
	return id >= READ_ONCE(vmtrace_first_id);
}

/* Whether vmtrace_attach() visits or has visited tasks like this one. */
static bool vmtrace_is_visited(const struct task_struct *task)
{
	return READ_ONCE(vmtrace_visited) && vmtrace_task_in_scope(task);
}

/*
 * Attach @mm if it should have got a number when it was created. It belongs to @task, which
 * is the current task or its child. @old_mm is the number of the task's former address
 * space, or 0.
 *
 * Together, the visit of vmtrace_attach() and this function leave out no new address
 * space, whatever the ids of tasks. The visit can find @task with @mm before this
 * function is called. So if this function sees that the visit has not begun, the visit
 * will find @task. Both may come to @mm: the second one sees its number, under
 * mmap_lock. At the end of a trace or a window, the visit of vmtrace_detach() may miss
 * what is attached here meanwhile: vmtrace_new_ids() follows, and makes that number
 * invalid.
 */
static void vmtrace_join(struct mm_struct *mm, const struct task_struct *task,
			 u32 old_mm)
{
	u32 era;

	/*
	 * Pairs with vmtrace_attach(): @task can be found with @mm before
	 * vmtrace_visited is read.
	 */
	smp_mb();
	do {
		era = vmtrace_this_era();
		if (vmtrace_mm_traced(mm) ||
		    !(vmtrace_traces_new() || vmtrace_is_visited(task) ||
		      vmtrace_is_valid(old_mm)))
			break;
	} while (vmtrace_attach_mm(mm, NULL, false, era) == -ESTALE);
}

static void vmtrace_emit_task(struct task_struct *task, u32 mm, u32 flags)
{
	struct vmtrace_ev_task t = {
		.tid = task_pid_nr(task),
		.tgid = task_tgid_nr(task),
		.start = task->start_time,
	};

	rcu_read_lock();
	/* That of a task that was reaped may be gone. */
	if (pid_alive(task))
		t.parent = task_tgid_nr(rcu_dereference(task->real_parent));
	rcu_read_unlock();
	get_task_comm(t.comm, task);
	vmtrace_emit_for(task, mm, VMTRACE_EV_TASK, &t, sizeof(t), NULL,
			 !(flags & VMTRACE_EVF_SNAPSHOT), flags);
}

/*
 * @task is in the address space of its creator, which has not been attached. So the
 * visit of vmtrace_attach() will come to the creator, but then describes the creator
 * only. The creator may even have left the address space by then. If the visit may
 * have passed @task's id already, have the visit repeated.
 */
void vmtrace_passed(struct task_struct *task)
{
	const u32 era = vmtrace_this_era();

	/* As in vmtrace_join(). */
	smp_mb();
	if (!vmtrace_is_visited(task) ||
	    (task->mm && vmtrace_is_spared(task->mm)))
		return;
	WRITE_ONCE(task->vmtrace_passed, era);
	vmtrace_look_again();
}

/*
 * The open files of a process that has joined a trace of many roots by itself: it was not
 * traced when they were opened.
 */
static void vmtrace_describe_files(struct task_struct *task)
{
	if (vmtrace_has_roots())
		vmtrace_snapshot_files(task, task->mm, VMTRACE_EVF_SNAPSHOT);
}

/*
 * @child is in the current task's address space. A reader who begins with the checkpoint
 * that is under way knows the child by the event of this fork, if the reader knows the
 * address space.
 */
static void vmtrace_describe_shared(struct task_struct *child)
{
	/* Pairs with vmtrace_checkpoint(): @child can be found before this is read. */
	smp_mb();
	if (!vmtrace_is_described(child->mm) &&
	    !vmtrace_broken(VMTRACE_BREAK_NODESCRIBE))
		vmtrace_describe_mm(current->mm, current->group_leader, false);
}

void __vmtrace_slow __vmtrace_fork(struct task_struct *child, u64 clone_flags)
{
	struct vmtrace_ev_fork f = {
		.child_tid = task_pid_nr(child),
		.child_tgid = task_tgid_nr(child),
		.clone_flags = clone_flags,
		.child_start = child->start_time,
	};
	const u32 parent = current->mm ? vmtrace_mm_id(current->mm) : 0;

	child->vmtrace_vtime = 0;
	child->vmtrace_passed = 0;
	if (!child->mm)
		return;
	/*
	 * Tracing began while it was made, or its creator is not attached yet. It has
	 * not run yet.
	 */
	if (child->mm != current->mm) {
		vmtrace_root_made(child);
		vmtrace_join(child->mm, child, 0);
		if (child->mm->vmtrace_unborn)
			vmtrace_born(child->mm);
	} else if (!parent && !(clone_flags & CLONE_THREAD)) {
		vmtrace_passed(child);
	} else {
		vmtrace_describe_shared(child);
	}
	vmtrace_refs_mm(child->mm, false);
	f.child_mm = vmtrace_mm_id(child->mm);
	if (!f.child_mm)
		return;
	vmtrace_emit(current->mm ? vmtrace_mm_id(current->mm) : 0,
		     VMTRACE_EV_FORK, &f, sizeof(f), NULL, true, 0);
	/*
	 * A fork event describes a child by its parent. If the parent was not attached,
	 * perhaps no event of this era describes the parent.
	 */
	if (!parent) {
		vmtrace_emit_task(child, f.child_mm, 0);
		vmtrace_describe_files(child);
	}
	/* Otherwise it is where its parent is. */
	if (!parent || clone_flags & CLONE_INTO_CGROUP)
		vmtrace_log_cgroup(child, f.child_mm, 0);
}

void __vmtrace_slow __vmtrace_exec(u32 old_mm, struct file *file,
				   const char *comm)
{
	struct inode *inode = vmtrace_inode(file);
	struct vmtrace_ev_exec x = {
		.old_mm = old_mm,
		.dev = vmtrace_dev(inode),
		.ino = inode->i_ino,
		.generation = inode->i_generation,
	};
	struct name_snapshot snap;

	vmtrace_root_executed();
	/* Attached while its new address space was made, apart from it. */
	vmtrace_join(current->mm, current, old_mm);
	if (current->mm->vmtrace_unborn)
		vmtrace_born(current->mm);
	if (!vmtrace_mm_traced(current->mm))
		return;
	if (!vmtrace_is_valid(old_mm))
		old_mm = x.old_mm = 0;
	vmtrace_refs_mm(current->mm, false);
	/* No event of this era need have described the task: it is new here. */
	if (!old_mm) {
		vmtrace_emit_task(current, vmtrace_number(current->mm), 0);
		vmtrace_describe_files(current);
	}
	strscpy_pad(x.comm, comm);
	take_dentry_name_snapshot(&snap, file->f_path.dentry);
	x.name_len = strnlen(snap.name.name, VMTRACE_NAME_MAX);
	vmtrace_emit(vmtrace_number(current->mm), VMTRACE_EV_EXEC, &x, sizeof(x),
		     snap.name.name, true, 0);
	release_dentry_name_snapshot(&snap);
	if (!old_mm)
		vmtrace_log_cgroup(current, vmtrace_number(current->mm), 0);
}

void __vmtrace_slow __vmtrace_task_exit(struct task_struct *tsk, long code)
{
	struct vmtrace_ev_exit x = { .code = code };

	if (!tsk->mm || !vmtrace_mm_traced(tsk->mm))
		return;
	/*
	 * Its files are closed after the address space is gone. With the lock, so that
	 * vmtrace_snapshot_task() does not describe it after the event that follows.
	 */
	task_lock(tsk);
	tsk->vmtrace_mm = vmtrace_number(tsk->mm);
	task_unlock(tsk);
	/* Bring the run time up to date; the next call reads it. */
	task_sched_runtime(tsk);
	task_cputime_adjusted(tsk, &x.utime, &x.stime);
	vmtrace_emit(vmtrace_number(tsk->mm), VMTRACE_EV_EXIT, &x, sizeof(x), NULL,
		     true, 0);
}

/*
 * A switch from @prev, of which only the task_struct may be left. Kernel
 * threads, the idle one among them, are recorded if they take turns with traced
 * tasks.
 */
void __vmtrace_slow __vmtrace_switch(struct task_struct *prev)
{
	struct vmtrace_ev_switch s = {
		.prev = task_pid_nr(prev),
		.next = task_pid_nr(current),
	};

	/* The next instruction is another one, and so are the pages it needs. */
	this_cpu_inc(vmtrace_epoch);
	vmtrace_ran_switch();
	if (vmtrace_class(VMTRACE_CLASS_SWITCH) &&
	    (vmtrace_task_in_scope(prev) || vmtrace_task_in_scope(current)))
		vmtrace_emit(current->mm ? vmtrace_mm_id(current->mm) : 0,
			     VMTRACE_EV_SWITCH, &s, sizeof(s), NULL, false, 0);
}

void vmtrace_mark(unsigned int type, u32 flags)
{
	vmtrace_emit(0, type, NULL, 0, NULL, true, flags);
}

/* The set gets another size. May wait for room, so it may sleep, and no lock is held. */
void vmtrace_log_resize(u32 from, u32 to, u32 flags)
{
	struct vmtrace_ev_resize r = { .from = from, .to = to };

	vmtrace_emit(0, VMTRACE_EV_RESIZE, &r, sizeof(r), NULL, true, flags);
}

/*
 * Whether a task that a visit has found in @mm, or a thread of its process, is to be described
 * there. It may have left @mm by exec since, and have ended. What has ended is described only
 * if no event of this era says so: a leader, of which other threads live.
 */
static bool vmtrace_is_of(const struct task_struct *task,
			  const struct mm_struct *mm)
{
	if (task->mm)
		return task->mm == mm &&
		       task->vmtrace_mm != vmtrace_number(mm);
	return task->vmtrace_mm < READ_ONCE(vmtrace_first_id);
}

void vmtrace_snapshot_task(struct task_struct *task, struct mm_struct *mm,
			   u32 flags)
{
	/*
	 * With the lock, exec does not enter another address space, and the event of an
	 * exit is not logged.
	 */
	task_lock(task);
	if (vmtrace_is_of(task, mm))
		vmtrace_emit_task(task, vmtrace_number(mm), flags);
	task_unlock(task);
}

/* By itself, or by another thread of its process. */
void __vmtrace_slow __vmtrace_rename(struct task_struct *task)
{
	u32 mm = vmtrace_own_mm();

	if (thread_group_leader(task))
		vmtrace_root_changed(task);
	if (mm && same_thread_group(task, current))
		vmtrace_emit_task(task, mm, 0);
}

#ifdef CONFIG_CGROUPS
static void vmtrace_emit_cgroup(struct cgroup *cgrp, struct task_struct *task,
				u32 mm, bool whole, bool may_sleep, u32 flags)
{
	struct vmtrace_ev_cgroup c = {
		.tid = task_pid_nr(task),
		.tgid = whole ? task_tgid_nr(task) : 0,
	};
	char path[VMTRACE_NAME_MAX + 1] = "";

	cgroup_path(cgrp, path, sizeof(path));
	c.name_len = strnlen(path, VMTRACE_NAME_MAX);
	vmtrace_emit(mm, VMTRACE_EV_CGROUP, &c, sizeof(c), path, may_sleep,
		     flags);
}

/* cgroup_mutex is held: a task, or all of its process, was moved. */
void __vmtrace_slow __vmtrace_cgroup(struct cgroup *cgrp,
				     struct task_struct *task, bool whole)
{
	u32 mm;

	if (!cgroup_on_dfl(cgrp))
		return;
	if (thread_group_leader(task))
		vmtrace_root_changed(task);
	task_lock(task);
	mm = task->mm ? vmtrace_mm_id(task->mm) : 0;
	task_unlock(task);
	if (mm)
		vmtrace_emit_cgroup(cgrp, task, mm, whole, false, 0);
}

/* Where a process is that exists already, or was made there. */
void vmtrace_log_cgroup(struct task_struct *task, u32 mm, u32 flags)
{
	struct cgroup *cgrp;

	rcu_read_lock();
	do {
		cgrp = task_dfl_cgroup(task);
	} while (!cgroup_tryget(cgrp));
	rcu_read_unlock();
	vmtrace_emit_cgroup(cgrp, task, mm, true, true, flags);
	cgroup_put(cgrp);
}
#endif

/*
 * Bytes of the events that describe an address space, which is locked, and the
 * threads of @leader, if it is not NULL. A name that changes meanwhile is of no
 * account: see Ring::missing().
 */
u64 vmtrace_snapshot_size(struct mm_struct *mm, struct task_struct *leader)
{
	VMA_ITERATOR(vmi, mm, 0);
	const size_t head = sizeof(struct vmtrace_event) + sizeof(u64);
	u64 bytes = head + sizeof(struct vmtrace_ev_set);
	struct vm_area_struct *vma;

	for_each_vma(vmi, vma) {
		size_t name = 16;

		if (vma->vm_file)
			name = min_t(size_t, VMTRACE_NAME_MAX,
				     vma->vm_file->f_path.dentry->d_name.len);
		bytes += head + sizeof(struct vmtrace_ev_map) +
			 round_up(name, 8);
	}
	if (leader)
		bytes += (head + sizeof(struct vmtrace_ev_task)) *
			 (u64)get_nr_threads(leader);
	return bytes;
}

/* Log the mappings of an address space, which is locked. */
void vmtrace_emit_maps(struct mm_struct *mm, u32 flags)
{
	VMA_ITERATOR(vmi, mm, 0);
	struct vm_area_struct *vma;

	for_each_vma(vmi, vma) {
		if (vmtrace_stack_incomplete(vma->vm_flags))
			continue;
		vmtrace_emit_map(vma, vma->vm_start, vma->vm_end,
				 VMTRACE_BY_SNAPSHOT, flags);
	}
}

/*
 * Number an address space of @task and log its mappings. All its VMAs are locked. False if
 * @era is over.
 */
bool vmtrace_snapshot_mm(struct mm_struct *mm, struct task_struct *task,
			 u32 era)
{
	if (!vmtrace_give_id(mm, task, era, VMTRACE_EVF_SNAPSHOT, false))
		return false;
	vmtrace_late(VMTRACE_LATE_NUMBERED);
	vmtrace_emit_maps(mm, VMTRACE_EVF_SNAPSHOT);
	return true;
}

/* Begin an era: all numbers that were given before become invalid. */
void vmtrace_new_ids(void)
{
	guard(spinlock)(&vmtrace_id_lock);
	WRITE_ONCE(vmtrace_first_id, vmtrace_last_id + 1);
	/* No count of the generations before is of this one or the next. */
	WRITE_ONCE(vmtrace_generation, vmtrace_generation + 2);
	vmtrace_unborn[0] = 0;
	vmtrace_unborn[1] = 0;
	/*
	 * Pairs with vmtrace_this_era(): a task that reads the new era sees that the
	 * reasons of the old era are gone.
	 */
	smp_store_release(&vmtrace_era, vmtrace_era + 1);
}

/*
 * Begin a generation, and log that. No address space is being described. Returns the
 * number of that event; 0 if address spaces of the last but one are not born yet, or if
 * there was no room.
 */
u64 vmtrace_new_generation(void)
{
	const u32 flags = VMTRACE_EVF_SNAPSHOT | VMTRACE_EVF_CHECKPOINT;
	struct vmtrace_ev_checkpoint c = { };
	u64 seq;

	/*
	 * Address spaces with greater numbers than that of the event have no events before
	 * it, and are of the new generation. So the event is logged under this lock, and
	 * without a wait.
	 */
	guard(spinlock)(&vmtrace_id_lock);
	if (vmtrace_unborn[(vmtrace_generation + 1) & 1] &&
	    !vmtrace_broken(VMTRACE_BREAK_NOBIRTH))
		return 0;
	c.last_mm = vmtrace_last_id;
	seq = vmtrace_emit_for(current, 0, VMTRACE_EV_CHECKPOINT, &c, sizeof(c),
			       NULL, false, flags);
	if (seq == ~0ULL)
		return 0;
	WRITE_ONCE(vmtrace_generation, vmtrace_generation + 1);
	return seq;
}

/* Whether address spaces of the last generation are not born yet. */
bool vmtrace_has_unborn(void)
{
	guard(spinlock)(&vmtrace_id_lock);
	return vmtrace_unborn[(vmtrace_generation - 1) & 1] &&
	       !vmtrace_broken(VMTRACE_BREAK_NOBIRTH);
}

/* Whether @mm was described, or made, in this generation. */
bool vmtrace_is_described(const struct mm_struct *mm)
{
	return READ_ONCE(mm->vmtrace_described) == READ_ONCE(vmtrace_generation);
}

/* An event of its description was logged. */
void vmtrace_set_described(struct mm_struct *mm)
{
	/* After that event: see vmtrace_describe_shared(). */
	smp_store_release(&mm->vmtrace_described, vmtrace_generation);
}
