// SPDX-License-Identifier: GPL-2.0
/*
 * Virtual memory reference tracing: the same events as tracepoints, for perf,
 * trace-cmd and BPF. Each has a static key of its own.
 */
#define CREATE_TRACE_POINTS
#include <trace/events/vmtrace.h>

#include "internal.h"
#include "pte.h"

/* A reference, for Rust, which looks at the static key. Any context. */
void vmtrace_trace_ref(u64 seq, u32 mm, u64 page, u32 pfn)
{
	trace_vmtrace_ref(seq, mm, page, pfn);
}

/**
 * vmtrace_trace_event - pass an event to the tracepoints
 * @seq: its record's sequence number, or ~0 if there is none
 * @mm: the address space that it is about, 0 if none
 * @type: VMTRACE_EV_*
 * @payload: what follows the record's head
 * @name: what follows that, or NULL
 */
void vmtrace_trace_event(u64 seq, u32 mm, unsigned int type,
			 const void *payload, const char *name)
{
	switch (type) {
	case VMTRACE_EV_MAP:
		trace_vmtrace_map(seq, mm, payload, name ?: "");
		break;
	case VMTRACE_EV_UNMAP:
		trace_vmtrace_unmap(seq, mm, payload);
		break;
	case VMTRACE_EV_MOVE:
		trace_vmtrace_move(seq, mm, payload);
		break;
	case VMTRACE_EV_PROTECT:
		trace_vmtrace_protect(seq, mm, payload);
		break;
	case VMTRACE_EV_ADVISE:
		trace_vmtrace_advise(seq, mm, payload);
		break;
	case VMTRACE_EV_COW:
		trace_vmtrace_cow(seq, mm, payload);
		break;
	case VMTRACE_EV_GUP:
		trace_vmtrace_gup(seq, mm, payload);
		break;
	case VMTRACE_EV_SWAP_IN:
		trace_vmtrace_swap_in(seq, mm, payload);
		break;
	case VMTRACE_EV_SWAP_OUT:
		trace_vmtrace_swap_out(seq, mm, payload);
		break;
	case VMTRACE_EV_KSM:
		trace_vmtrace_ksm(seq, mm, payload);
		break;
	case VMTRACE_EV_MIGRATE:
		trace_vmtrace_migrate(seq, mm, payload);
		break;
	case VMTRACE_EV_SWITCH:
		trace_vmtrace_switch(seq, mm, payload);
		break;
	case VMTRACE_EV_MM_DUP:
		trace_vmtrace_mm_dup(seq, mm, payload);
		break;
	case VMTRACE_EV_MM_END:
		trace_vmtrace_mm_end(seq, mm);
		break;
	case VMTRACE_EV_FORK:
		trace_vmtrace_fork(seq, mm, payload);
		break;
	case VMTRACE_EV_EXEC:
		trace_vmtrace_exec(seq, mm, payload, name ?: "");
		break;
	case VMTRACE_EV_EXIT:
		trace_vmtrace_exit(seq, mm, payload);
		break;
	case VMTRACE_EV_TASK:
		trace_vmtrace_task(seq, mm, payload);
		break;
	case VMTRACE_EV_CGROUP:
		trace_vmtrace_cgroup(seq, mm, payload, name ?: "");
		break;
	case VMTRACE_EV_SHMAT:
		trace_vmtrace_shmat(seq, mm, payload);
		break;
	case VMTRACE_EV_SHMDT:
		trace_vmtrace_shmdt(seq, mm, payload);
		break;
	case VMTRACE_EV_SHM_DESTROY:
		trace_vmtrace_shm_destroy(seq, mm, payload);
		break;
	case VMTRACE_EV_OPEN:
		trace_vmtrace_open(seq, mm, payload, name ?: "");
		break;
	case VMTRACE_EV_CLOSE:
		trace_vmtrace_close(seq, mm, payload, name ?: "");
		break;
	case VMTRACE_EV_READ:
		trace_vmtrace_read(seq, mm, payload);
		break;
	case VMTRACE_EV_WRITE:
		trace_vmtrace_write(seq, mm, payload);
		break;
	case VMTRACE_EV_TRUNCATE:
		trace_vmtrace_truncate(seq, mm, payload);
		break;
	case VMTRACE_EV_PUNCH:
		trace_vmtrace_punch(seq, mm, payload);
		break;
	case VMTRACE_EV_DELETE:
		trace_vmtrace_delete(seq, mm, payload);
		break;
	case VMTRACE_EV_SET:
		trace_vmtrace_set(seq, mm, payload);
		break;
	case VMTRACE_EV_RESIZE:
		trace_vmtrace_resize(seq, payload);
		break;
	case VMTRACE_EV_FILTER:
		trace_vmtrace_filter(seq, payload);
		break;
	case VMTRACE_EV_REGION:
		trace_vmtrace_region(seq, mm, payload);
		break;
	case VMTRACE_EV_SNAP_BEGIN:
		trace_vmtrace_snap_begin(seq, mm);
		break;
	case VMTRACE_EV_SNAP_END:
		trace_vmtrace_snap_end(seq, mm);
		break;
	case VMTRACE_EV_REFS_BEGIN:
		trace_vmtrace_refs_begin(seq, mm);
		break;
	case VMTRACE_EV_CHECKPOINT:
		trace_vmtrace_checkpoint(seq, payload);
		break;
	case VMTRACE_EV_CHECKPOINT_END:
		trace_vmtrace_checkpoint_end(seq, mm);
		break;
	}
}
