// SPDX-License-Identifier: GPL-2.0
/*
 * Virtual memory reference tracing: looks at single pages, for a trace that samples regions
 * (sampling.rs). A look begins when a page is aimed at, and ends at the next look, which
 * checks whether the page was accessed meanwhile.
 *
 * A page of a page table is aimed at by its entry, and a mark in the entry's word has what
 * becomes known of accesses: see sampling.rs. A huge page has no word here: its accessed bit
 * is cleared, as DAMON does.
 *
 * Lock order: mmap_lock -> page table lock.
 */
#include <linux/delay.h>
#include <linux/hugetlb.h>
#include <linux/mm.h>
#include <linux/mm_inline.h>
#include <linux/mmap_lock.h>
#include <linux/mmu_notifier.h>
#include <linux/page_idle.h>
#include <linux/pagewalk.h>
#include <linux/pgtable.h>
#include <linux/sched/mm.h>
#include <linux/vmtrace.h>

#include "event.h"
#include "internal.h"
#include "pte.h"

/* How often an address space is tried to be locked, each 50 us, before a look is left out. */
#define VMTRACE_LOOK_TRIES	4

/**
 * vmtrace_look_begin - hold an address space and lock it for looks
 * @mm: which was grabbed
 * @disables: entries are disabled
 *
 * Returns 0, -ESRCH if it has no users any more, or -EAGAIN if a task keeps it locked.
 * vmtrace_look_end() is to follow if this is 0.
 */
int vmtrace_look_begin(struct mm_struct *mm, bool disables)
{
	int tries;

	if (!mmget_not_zero(mm))
		return -ESRCH;
	for (tries = 0; !mmap_read_trylock(mm); tries++) {
		if (tries == VMTRACE_LOOK_TRIES) {
			mmput_async(mm);
			return -EAGAIN;
		}
		fsleep(50);
	}
	/*
	 * Entries are disabled under their locks, and flushed later. Who clears a disabled
	 * one meanwhile is to flush it all the same: see pte_accessible().
	 */
	if (disables)
		inc_tlb_flush_pending(mm);
	return 0;
}

/**
 * vmtrace_look_end - flush what was aimed at, and let the address space go
 * @mm: the address space
 * @pages: the first VMTRACE_FLUSH_PAGES of the pages that are to be flushed
 * @nr: how many there are
 * @disables: as in vmtrace_look_begin()
 *
 * Its last user may have gone meanwhile. What is left to do for that may wait for a disk, so
 * it is not done here. A worker does it, and its events do not wait for room in the log.
 */
void vmtrace_look_end(struct mm_struct *mm, const unsigned long *pages,
		      unsigned int nr, bool disables)
{
	if (nr)
		vmtrace_flush(mm, pages, nr, 0);
	if (disables)
		dec_tlb_flush_pending(mm);
	mmap_read_unlock(mm);
	mmput_async(mm);
}

/* A look at one page, in a walk of the page tables. */
struct vmtrace_look {
	u32 by;			/* VMTRACE_BY_* */
	bool aims;
	u32 found;		/* enum vmtrace_looked */
};

/*
 * Another page table translates the same memory for a virtual machine, and has accessed bits of
 * its own: whether such a bit is set, or was until now. The page table is locked.
 */
static bool vmtrace_look_beside(struct mm_struct *mm, unsigned long addr,
				bool aims)
{
	return aims ? mmu_notifier_clear_young(mm, addr, addr + PAGE_SIZE) :
		      mmu_notifier_test_young(mm, addr);
}

#ifdef CONFIG_TRANSPARENT_HUGEPAGE
static bool vmtrace_look_pmd_leaf(pmd_t *pmdp, unsigned long addr,
				  struct mm_walk *walk)
{
	struct vmtrace_look *look = walk->private;
	spinlock_t *ptl = pmd_trans_huge_lock(pmdp, walk->vma);
	struct folio *folio;
	bool young;
	pmd_t pmd;

	if (!ptl)
		return false;
	pmd = pmdp_get(pmdp);
	if (pmd_present(pmd)) {
		young = vmtrace_look_beside(walk->mm, addr, look->aims);
		if (!look->aims) {
			if (young || pmd_young(pmd))
				look->found |= VMTRACE_LOOKED_ACCESSED;
		} else if (pmdp_test_and_clear_young(walk->vma, addr & PMD_MASK,
						     pmdp) || young) {
			look->found |= VMTRACE_LOOKED_FLUSH;
			/* Reclaim is to know of the access, too. */
			folio = vm_normal_folio_pmd(walk->vma, addr, pmd);
			if (folio)
				folio_set_young(folio);
		}
	}
	spin_unlock(ptl);
	return true;
}
#else
static bool vmtrace_look_pmd_leaf(pmd_t *pmdp, unsigned long addr,
				  struct mm_walk *walk)
{
	return false;
}
#endif

static int vmtrace_look_pmd(pmd_t *pmdp, unsigned long addr,
			    unsigned long next, struct mm_walk *walk)
{
	struct vmtrace_look *look = walk->private;
	struct page *words = NULL;
	spinlock_t *ptl;
	pte_t *ptep;

	if (vmtrace_look_pmd_leaf(pmdp, addr, walk))
		return 0;
	ptep = pte_offset_map_lock(walk->mm, pmdp, addr, &ptl);
	if (ptep && look->aims && !vmtrace_entry(ptep) &&
	    pte_present(ptep_get(ptep))) {
		/*
		 * Its page table needs words. It may be another one after this. Reclaim may
		 * wait for a disk, and STOP for this.
		 */
		pte_unmap_unlock(ptep, ptl);
		words = alloc_page(GFP_NOWAIT | __GFP_ZERO);
		ptep = pte_offset_map_lock(walk->mm, pmdp, addr, &ptl);
		if (ptep && words) {
			vmtrace_set_words(walk->mm, ptep, words);
			words = NULL;
		}
	}
	if (ptep) {
		bool young = vmtrace_look_beside(walk->mm, addr, look->aims);

		if (look->aims)
			look->found |= vmtrace_rs_aim(ptep, look->by, young);
		else
			look->found |= vmtrace_rs_check(ptep, look->by, young);
		pte_unmap_unlock(ptep, ptl);
	}
	if (words)
		__free_page(words);
	return 0;
}

/* Nothing is found of a page of PUD size that is not hugetlb's. The walk would split it. */
static int vmtrace_look_pud(pud_t *pudp, unsigned long addr, unsigned long next,
			    struct mm_walk *walk)
{
	if (pud_leaf(pudp_get(pudp)))
		walk->action = ACTION_CONTINUE;
	return 0;
}

#ifdef CONFIG_HUGETLB_PAGE
static int vmtrace_look_hugetlb(pte_t *ptep, unsigned long hmask,
				unsigned long addr, unsigned long next,
				struct mm_walk *walk)
{
	struct vmtrace_look *look = walk->private;
	struct hstate *h = hstate_vma(walk->vma);
	spinlock_t *ptl = huge_pte_lock(h, walk->mm, ptep);
	pte_t pte = huge_ptep_get(walk->mm, addr & hmask, ptep);

	if (pte_present(pte) && pte_young(pte)) {
		if (look->aims) {
			set_huge_pte_at(walk->mm, addr & hmask, ptep,
					pte_mkold(pte), huge_page_size(h));
			look->found |= VMTRACE_LOOKED_FLUSH;
		} else {
			look->found |= VMTRACE_LOOKED_ACCESSED;
		}
	}
	spin_unlock(ptl);
	return 0;
}
#else
#define vmtrace_look_hugetlb	NULL
#endif

static const struct mm_walk_ops vmtrace_look_ops = {
	.pud_entry	= vmtrace_look_pud,
	.pmd_entry	= vmtrace_look_pmd,
	.hugetlb_entry	= vmtrace_look_hugetlb,
	.test_walk	= vmtrace_walk_test,
	.walk_lock	= PGWALK_RDLOCK,
};

/**
 * vmtrace_look_at - aim at a page, or check what became of it
 * @mm: the address space, between vmtrace_look_begin() and vmtrace_look_end()
 * @addr: of the page
 * @by: VMTRACE_BY_*
 * @aims: aim at it
 *
 * Returns enum vmtrace_looked.
 */
u32 vmtrace_look_at(struct mm_struct *mm, unsigned long addr, u32 by,
		    bool aims)
{
	struct vmtrace_look look = { .by = by, .aims = aims };

	if (addr >= TASK_SIZE)
		return 0;
	walk_page_range(mm, addr, addr + PAGE_SIZE, &vmtrace_look_ops, &look);
	return look.found;
}

/* Have Rust note all mappings, in the order of addresses. The address space is locked. */
void vmtrace_look_areas(struct mm_struct *mm, void *areas)
{
	VMA_ITERATOR(vmi, mm, 0);
	struct vm_area_struct *vma;

	for_each_vma(vmi, vma)
		vmtrace_rs_area(areas, vma->vm_start, vma->vm_end);
}

static void vmtrace_look_found(struct task_struct *leader, struct mm_struct *mm,
			       void *sampler)
{
	u32 id = vmtrace_mm_id(mm);

	if (id)
		vmtrace_rs_found(sampler, mm, id);
}

/*
 * Have Rust note all address spaces that are traced. May sleep. @sampler is passed on to
 * vmtrace_rs_found(), which is called by this task only.
 */
void vmtrace_look_for_spaces(void *sampler)
{
	vmtrace_visit_mms_later(vmtrace_look_found, sampler);
}

/* For Rust, which keeps an address space that may have no users any more. */
void vmtrace_grab(struct mm_struct *mm)
{
	mmgrab(mm);
}

/* Gives back what vmtrace_grab() has taken; may free @mm. */
void vmtrace_drop(struct mm_struct *mm)
{
	mmdrop(mm);
}

/* Whether an address space has users: its end has not been logged yet. */
bool vmtrace_has_users(const struct mm_struct *mm)
{
	return atomic_read(&mm->mm_users) > 0;
}

/* What was found out about a region is logged. The context may sleep, and holds nothing. */
void vmtrace_log_region(u32 mm, const struct vmtrace_ev_region *region)
{
	vmtrace_rs_throttle_other();
	vmtrace_emit(mm, VMTRACE_EV_REGION, region, sizeof(*region), NULL, true,
		     0);
}
