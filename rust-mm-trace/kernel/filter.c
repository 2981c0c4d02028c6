// SPDX-License-Identifier: GPL-2.0
/*
 * Virtual memory reference tracing: what a filter has to know of a reference. It is judged
 * before its page table is locked (filter.rs), so names may be looked at here.
 */
#include <linux/dcache.h>
#include <linux/fs.h>
#include <linux/glob.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/vmtrace.h>

#include "event.h"
#include "internal.h"
#include "pte.h"

struct vmtrace_filter_key vmtrace_filter_key = { .key = STATIC_KEY_FALSE_INIT };

/* For Rust. The context may sleep. */
void vmtrace_filter_switch(bool on)
{
	if (on)
		static_branch_enable(&vmtrace_filter_key.key);
	else
		static_branch_disable(&vmtrace_filter_key.key);
}

/* For Rust. */
bool vmtrace_glob(const char *pattern, const char *name)
{
	return glob_match(pattern, name);
}

/* In the words of struct vmtrace_ev_map's readers, who know only the events. */
static const char *vmtrace_anon_name(const struct vm_area_struct *vma)
{
	if (vma->vm_flags & VM_GROWSDOWN)
		return "[stack]";
	return vma_is_initial_heap(vma) ? "[heap]" : "[anon]";
}

static bool vmtrace_keeps(const struct vmtrace_touch *t,
			  struct vm_area_struct *vma)
{
	struct vmtrace_place place = { .name = "" };
	struct name_snapshot snap;
	bool keeps;

	if (!vma || !vmtrace_rs_filter_maps())
		return vmtrace_rs_keeps(t, &place);
	place.kind = vmtrace_map_kind(vma);
	if (vma->vm_file) {
		take_dentry_name_snapshot(&snap, vma->vm_file->f_path.dentry);
		place.name = snap.name.name;
	} else if (place.kind == VMTRACE_MAP_ANON) {
		place.name = vmtrace_anon_name(vma);
	} else {
		place.name = vmtrace_special_name(vma) ?: "[special]";
	}
	keeps = vmtrace_rs_keeps(t, &place);
	if (vma->vm_file)
		release_dentry_name_snapshot(&snap);
	return keeps;
}

/**
 * __vmtrace_judge - decide whether a reference is recorded
 * @t: the access, without locks, and with what Rust needs to admit its page
 * @vma: its VMA, which is locked
 *
 * Preemption is disabled until the page is admitted. So the filter that decides is the one
 * that is in force at the admission: see filter.rs.
 */
void __vmtrace_slow __vmtrace_judge(struct vmtrace_touch *t,
				    struct vm_area_struct *vma)
{
	if (!vmtrace_keeps(t, vma))
		t->flags |= VMTRACE_TOUCH_LEFT;
}

/*
 * The same for an access whose VMA was not looked up. False if it can't be had: then the usual
 * path is to be taken. What a writer of mmap_lock does to the VMA after this shows in the
 * count of the writers.
 */
bool __vmtrace_slow __vmtrace_judge_touch(struct vmtrace_touch *t)
{
#ifdef CONFIG_PER_VMA_LOCK
	struct vm_area_struct *vma = NULL;

	if (vmtrace_rs_filter_maps()) {
		vma = lock_vma_under_rcu(t->a.mm, t->a.address);
		if (!vma)
			return false;
	}
	__vmtrace_judge(t, vma);
	if (vma)
		vma_end_read(vma);
	return true;
#else
	if (vmtrace_rs_filter_maps())
		return false;
	__vmtrace_judge(t, NULL);
	return true;
#endif
}

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
