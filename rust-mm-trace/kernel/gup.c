// SPDX-License-Identifier: GPL-2.0
/*
 * Virtual memory reference tracing: pages that the kernel reaches past the page
 * tables, by get_user_pages() and the like. No page becomes accessible by that;
 * each one that is handed out is an event.
 *
 * The event cannot say when and how often the page is accessed afterwards, only
 * for which purpose it was requested. Lookups that hand out no page, such as
 * populating and locking, are no event.
 */
#include <linux/hugetlb.h>
#include <linux/mm.h>
#include <linux/vmtrace.h>

#include "event.h"
#include "internal.h"
#include "pte.h"

void __vmtrace_slow __vmtrace_gup(struct mm_struct *mm,
				  struct vm_area_struct *vma,
				  unsigned long addr, struct page **pages,
				  unsigned int nr, unsigned int gup_flags)
{
	struct page *page = *pages;
	unsigned long pfn = page_to_pfn(page);
	struct vmtrace_ev_page p = {
		.page = addr & PAGE_MASK,
		.arg = (gup_flags & FOLL_WRITE ? VMTRACE_GUP_WRITE : 0) |
		       (gup_flags & FOLL_LONGTERM ? VMTRACE_GUP_LONGTERM : 0),
	};

	/* The arguments of exec, at an address that is not yet theirs. */
	if (!vmtrace_class(VMTRACE_CLASS_GUP) || !vmtrace_mm_traced(mm) ||
	    vmtrace_stack_incomplete(vma->vm_flags))
		return;
	/* A call asks for pages of one huge page. */
	if (is_vm_hugetlb_page(vma)) {
		p.page = addr & huge_page_mask(hstate_vma(vma));
		pfn = folio_pfn(page_folio(page));
		nr = 1;
	}
	for (; nr; nr--, pfn++, p.page += PAGE_SIZE) {
		p.old_pfn = pfn;
		p.new_pfn = pfn;
		vmtrace_rs_throttle_other();
		vmtrace_emit(vmtrace_number(mm), VMTRACE_EV_GUP, &p, sizeof(p),
			     NULL, true, 0);
	}
}
