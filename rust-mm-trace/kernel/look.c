// SPDX-License-Identifier: GPL-2.0
/*
 * Virtual memory reference tracing: references that are looked at more closely, because a
 * filter judges them (filter.rs) or because they are counted (counts.rs). Both need the
 * mapping, whose name is looked up before the page table is locked.
 */
#include <linux/dcache.h>
#include <linux/fs.h>
#include <linux/glob.h>
#include <linux/kcsan-checks.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/vmtrace.h>

#include "event.h"
#include "internal.h"
#include "pte.h"

static_assert(!((VMTRACE_TOUCH_LEFT | VMTRACE_TOUCH_ADMITTED) &
		((FAULT_FLAG_NOREF << 1) - 1)));

struct vmtrace_look_key vmtrace_look_key = { .key = STATIC_KEY_FALSE_INIT };

/* For Rust. The context may sleep. */
void vmtrace_look_switch(bool on)
{
	if (on)
		static_branch_enable(&vmtrace_look_key.key);
	else
		static_branch_disable(&vmtrace_look_key.key);
}

/* For Rust. Both end with a zero byte, and nobody changes them meanwhile. */
bool vmtrace_glob(const char *pattern, const char *name)
{
	return glob_match(pattern, name);
}

/* In the words of readers of struct vmtrace_ev_map, who know only the events. */
static const char *vmtrace_anon_name(const struct vm_area_struct *vma)
{
	if (vma->vm_flags & VM_GROWSDOWN)
		return "[stack]";
	return vma_is_initial_heap(vma) ? "[heap]" : "[anon]";
}

/* @place gets the name of @vma, which is locked, and which may be in @snap. */
static void vmtrace_place_begin(struct vmtrace_place *place,
				struct name_snapshot *snap,
				struct vm_area_struct *vma)
{
	*place = (struct vmtrace_place) { .name = "" };
	if (!vma)
		return;
	place->kind = vmtrace_map_kind(vma);
	if (vma->vm_file) {
		const struct inode *inode = file_inode(vma->vm_file);

		take_dentry_name_snapshot(snap, vma->vm_file->f_path.dentry);
		place->name = snap->name.name;
		place->dev = vmtrace_dev(inode);
		place->ino = inode->i_ino;
	} else if (place->kind == VMTRACE_MAP_ANON) {
		place->name = vmtrace_anon_name(vma);
	} else {
		place->name = vmtrace_special_name(vma) ?: "[special]";
	}
}

static void vmtrace_place_end(struct name_snapshot *snap,
			      struct vm_area_struct *vma)
{
	if (vma && vma->vm_file)
		release_dentry_name_snapshot(snap);
}

static bool vmtrace_looks_at_mappings(void)
{
	return vmtrace_rs_judge_maps() || vmtrace_rs_counts();
}

static void vmtrace_judge(struct vmtrace_touch *t,
			  const struct vmtrace_place *place)
{
	if (!vmtrace_rs_judge(t, place))
		t->flags |= VMTRACE_TOUCH_LEFT;
}

static void vmtrace_count(const struct vmtrace_touch *t,
			  const struct vmtrace_place *place)
{
	if (t->flags & VMTRACE_TOUCH_ADMITTED)
		vmtrace_rs_count(t, place);
}

/**
 * __vmtrace_look_readmit - vmtrace_rs_readmit() of a reference that is looked at
 * @t: the access
 * @vma: its VMA, which is locked
 *
 * Preemption is disabled from the judgement to the end of the admission. So the filter that
 * decides is the one that is in force at the admission: see filter.rs.
 */
void __vmtrace_slow __vmtrace_look_readmit(struct vmtrace_touch *t,
					   struct vm_area_struct *vma)
{
	struct vmtrace_place place;
	struct name_snapshot snap;

	if (!vmtrace_looks_at_mappings())
		vma = NULL;
	vmtrace_place_begin(&place, &snap, vma);
	vmtrace_judge(t, &place);
	vmtrace_rs_readmit(t);
	vmtrace_count(t, &place);
	vmtrace_place_end(&snap, vma);
}

/*
 * vmtrace_rs_touch() of a reference that is looked at, whose VMA was not looked up. If that can't
 * be had at once, the usual path is to be taken. What a writer of mmap_lock did to the VMA
 * before it was locked shows in the count of the writers.
 */
int __vmtrace_slow __vmtrace_look_touch(struct vmtrace_touch *t)
{
	struct vm_area_struct *vma = NULL;
	struct vmtrace_place place;
	struct name_snapshot snap;
	int answer;

	if (!vmtrace_pte_disabled(t->pte))
		return VMTRACE_RESERVE_OFF;
	if (vmtrace_looks_at_mappings()) {
		vma = lock_vma_under_rcu(t->a.mm, t->a.address);
		/* It reads a sequence count: see vmtrace_unlocked(). */
		kcsan_atomic_next(0);
		if (!vma)
			return VMTRACE_RESERVE_OFF;
	}
	vmtrace_place_begin(&place, &snap, vma);
	vmtrace_judge(t, &place);
	answer = vmtrace_rs_touch(t);
	vmtrace_count(t, &place);
	vmtrace_place_end(&snap, vma);
	if (vma)
		vma_end_read(vma);
	return answer;
}

/*
 * The filter is another one: @payload is its event, @len bytes. May wait for room, so it may
 * sleep, and no lock is held.
 */
void vmtrace_log_filter(const void *payload, size_t len, u32 flags)
{
	vmtrace_emit(0, VMTRACE_EV_FILTER, payload, len, NULL, true, flags);
}

/* The same, unless it would wait for room. Whether it is logged, or is not wanted. */
bool vmtrace_try_log_filter(const void *payload, size_t len)
{
	const struct vmtrace_event_in e = {
		.type = VMTRACE_EV_FILTER,
		.payload_len = len,
		.may_sleep = true,
		.tid = task_pid_nr(current),
		.tgid = task_tgid_nr(current),
		.vtime = current->vmtrace_vtime,
		.payload = payload,
	};
	u64 seq;

	if (!vmtrace_rs_try_event(&e, &seq))
		return false;
	vmtrace_trace_event(seq, 0, e.type, payload, NULL);
	return true;
}
