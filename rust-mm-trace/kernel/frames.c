// SPDX-License-Identifier: GPL-2.0
/*
 * Virtual memory reference tracing: page frames that pages lose and get. The
 * callers hold the page table lock and are about to change the PTE. Most of them
 * work for other tasks, so these events never wait. An event that finds no room
 * is counted as lost.
 */
#include <linux/mm.h>
#include <linux/swapops.h>
#include <linux/vmtrace.h>

#include "event.h"
#include "internal.h"
#include "pte.h"

static void vmtrace_emit_frame(struct mm_struct *mm, u32 class,
			       unsigned int type, unsigned long addr,
			       u64 old_pfn, u64 new_pfn, u64 arg)
{
	struct vmtrace_ev_page p = {
		.page = addr & PAGE_MASK,
		.old_pfn = old_pfn,
		.new_pfn = new_pfn,
		.arg = arg,
	};

	if (vmtrace_class(class) && vmtrace_mm_traced(mm))
		vmtrace_emit(vmtrace_number(mm), type, &p, sizeof(p), NULL,
			     false, 0);
}

static u64 vmtrace_slot(swp_entry_t entry)
{
	return (u64)swp_type(entry) << VMTRACE_SWAP_AREA_SHIFT |
	       swp_offset(entry);
}

void __vmtrace_slow __vmtrace_swap_out(struct mm_struct *mm, unsigned long addr,
				       unsigned long pfn, swp_entry_t entry)
{
	vmtrace_emit_frame(mm, VMTRACE_CLASS_SWAP, VMTRACE_EV_SWAP_OUT, addr,
			   pfn, VMTRACE_NO_FRAME, vmtrace_slot(entry));
}

/* @nr pages next to each other, in memory as in the swap area. */
void __vmtrace_slow __vmtrace_swap_in(struct mm_struct *mm, unsigned long addr,
				      unsigned long pfn, swp_entry_t entry,
				      unsigned int nr)
{
	unsigned int i;

	for (i = 0; i < nr; i++)
		vmtrace_emit_frame(mm, VMTRACE_CLASS_SWAP, VMTRACE_EV_SWAP_IN,
				   addr + i * PAGE_SIZE, VMTRACE_NO_FRAME,
				   pfn + i, vmtrace_slot(entry) + i);
}

void __vmtrace_slow __vmtrace_ksm(struct mm_struct *mm, unsigned long addr,
				  unsigned long old_pfn, unsigned long new_pfn)
{
	vmtrace_emit_frame(mm, VMTRACE_CLASS_FRAME, VMTRACE_EV_KSM, addr,
			   old_pfn, new_pfn, 0);
}

/* A migration that failed puts the old frame back. */
void __vmtrace_slow __vmtrace_migrate(struct mm_struct *mm, unsigned long addr,
				      unsigned long old_pfn,
				      unsigned long new_pfn)
{
	if (old_pfn != new_pfn)
		vmtrace_emit_frame(mm, VMTRACE_CLASS_FRAME, VMTRACE_EV_MIGRATE,
				   addr, old_pfn, new_pfn, 0);
}
