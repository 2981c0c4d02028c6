// SPDX-License-Identifier: GPL-2.0
/*
 * Virtual memory reference tracing: huge pages of hugetlb. One is one member, and its
 * entry, a PMD or a PUD, is disabled and enabled like a PTE: hugetlb stores its
 * entries by the primitives of PTEs.
 *
 * Differences: the entry lies in a table of PMDs or PUDs, and has that table's lock.
 * Faults take a path of their own, hugetlb_fault(), so the page is admitted behind it
 * and not within. And address spaces may share a table of PMDs, in which an entry
 * would be enabled for all of them: those that are traced share none.
 */
#include <linux/hugetlb.h>
#include <linux/mm.h>
#include <linux/pagewalk.h>
#include <linux/vmtrace.h>

#include "internal.h"
#include "pte.h"

/*
 * The size of what @pte, a leaf of a higher level by its PSE bit, maps, by log2. 0 if
 * that is not a page of hugetlb. The page is mapped, so it stays one.
 */
unsigned int vmtrace_huge_shift(pte_t pte)
{
	const unsigned long pfn = pte_pfn(pte);
	struct folio *folio;

	if (!pfn_valid(pfn))
		return 0;
	folio = page_folio(pfn_to_page(pfn));
	return folio_test_hugetlb(folio) ? folio_shift(folio) : 0;
}

/* What the handle of an entry has in its low bits. */
static unsigned long vmtrace_huge_kind(struct hstate *h)
{
	return huge_page_size(h) >= PUD_SIZE ? VMTRACE_ENTRY_PUD :
					       VMTRACE_ENTRY_PMD;
}

/* The lock of an entry of this kind. As huge_pte_lockptr() has it. */
spinlock_t *vmtrace_huge_lockptr(struct mm_struct *mm, pte_t *ptep,
				 unsigned long kind)
{
	return kind & VMTRACE_ENTRY_PUD ? pud_lockptr(mm, (pud_t *)ptep) :
					  pmd_lockptr(mm, (pmd_t *)ptep);
}

/**
 * vmtrace_huge_fault - a fault in a mapping of hugetlb succeeded
 * @vma: the mapping, still locked
 * @address: where
 * @flags: of the fault
 *
 * Makes the page a member. In an address space that is not traced (any more), enables
 * what a trace has left disabled.
 */
void vmtrace_huge_fault(struct vm_area_struct *vma, unsigned long address,
			unsigned int flags)
{
	struct hstate *h = hstate_vma(vma);
	struct vm_fault vmf = {
		.vma = vma,
		.address = address & huge_page_mask(h),
		.real_address = address,
		.flags = flags,
	};
	struct vmtrace_touch t = {
		.a.mm = vma->vm_mm,
		.flags = flags,
	};
	pte_t *ptep;

	hugetlb_vma_lock_read(vma);
	ptep = hugetlb_walk(vma, vmf.address, huge_page_size(h));
	if (!ptep)
		goto out;
	if (vmtrace_mm_refs(vma->vm_mm)) {
		if (!(flags & FAULT_FLAG_NOREF))
			vmtrace_admit_entry(&vmf, ptep, vmtrace_huge_kind(h));
	} else {
		t.ptep = ptep;
		t.pte = ptep_get_lockless(ptep);
		t.ptl = huge_pte_lockptr(h, vma->vm_mm, ptep);
		vmtrace_rs_heal(&t);
	}
out:
	hugetlb_vma_unlock_read(vma);
}

bool __vmtrace_slow __vmtrace_no_pmd_share(struct mm_struct *mm)
{
	return vmtrace_mm_refs(mm) && !vmtrace_broken(VMTRACE_BREAK_PMDSHARE);
}

/*
 * Give an address space that is to be traced tables of its own. mmap_lock is held for
 * writing and all VMAs are locked. The address space has its number already, so none
 * becomes shared again behind this: those who share look at it under i_mmap_rwsem,
 * which this takes.
 */
void vmtrace_unshare(struct mm_struct *mm)
{
	VMA_ITERATOR(vmi, mm, 0);
	struct vm_area_struct *vma;

	if (vmtrace_broken(VMTRACE_BREAK_PMDSHARE))
		return;
	for_each_vma(vmi, vma)
		if (is_vm_hugetlb_page(vma))
			hugetlb_unshare_all_pmds(vma);
}

/* mm_walk_ops.hugetlb_entry of attaching and detaching. */
int vmtrace_walk_huge(pte_t *ptep, unsigned long hmask, unsigned long addr,
		      unsigned long next, struct mm_walk *walk, bool disable)
{
	spinlock_t *ptl = huge_pte_lock(hstate_vma(walk->vma), walk->mm, ptep);

	vmtrace_rs_pte_switch(ptep, walk->mm, addr & hmask, disable);
	spin_unlock(ptl);
	return 0;
}
