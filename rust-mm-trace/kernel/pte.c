// SPDX-License-Identifier: GPL-2.0
/*
 * Virtual memory reference tracing: the page table side.
 *
 * Invariant: every PTE of a traced address space through which user mode can
 * reach a page belongs to a member of the EVMS. Whatever stores a PTE stores it
 * disabled (vmtrace_filter()); only an admission enables one; whatever
 * clears an enabled one ends its stay (vmtrace_clear()). All three happen
 * under the PTE's lock.
 *
 * Lock order: mmap_lock or VMA lock -> page table lock -> the EVMS's lock or
 * the lock of a CPU's events (leaves, in Rust). Nobody waits for a page table lock with
 * another one held: a victim is disabled under the lock of the page to be admitted
 * if that lock is for both, or if the victim's is free. Otherwise it is disabled
 * before the lock of that page is taken.
 */
#include <linux/delay.h>
#include <linux/init.h>
#include <linux/kcsan-checks.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/pgtable.h>
#include <linux/preempt.h>
#include <linux/rmap.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/timekeeping.h>
#include <linux/vmtrace.h>
#include <asm/tlbflush.h>
#include <trace/events/vmtrace.h>

#include "internal.h"
#include "late.h"
#include "pte.h"

DEFINE_STATIC_KEY_FALSE(vmtrace_key);
/* Never turned off again: PTEs that a trace leaves disabled must heal. */
DEFINE_STATIC_KEY_FALSE(vmtrace_used_key);

u32 vmtrace_first_id = 1;
u32 vmtrace_quiet;

DEFINE_PER_CPU(u32, vmtrace_epoch);

/*
 * The epoch of any CPU. It may change at any moment. To see it late does no harm:
 * a page that could go is renewed.
 *
 * Rarely called. The oracle looks at what it returns.
 */
noinline u32 vmtrace_epoch_of(unsigned int cpu)
{
	return cpu < nr_cpu_ids ? READ_ONCE(per_cpu(vmtrace_epoch, cpu)) : 0;
}

/* Protections taken away: negative controls. */
unsigned long vmtrace_break;

#ifdef CONFIG_VMTRACE_DEBUG
static int __init vmtrace_break_setup(char *str)
{
	/* In the order of VMTRACE_BREAK_*. */
	static const char * const names[] = {
		"noflush", "noaccess", "pmdmove", "nofilter", "noreflush",
		"noclose", "noyoung", "nodirty", "noupgrade", "noadmit",
		"pmdleaf", "noattach", "noblock", "noagain", "noorder",
		"late", "noclock", "noexpire", "noturns", "pmdshare",
		"nocompare", "noseq", "norights", "nokeys", "nozap",
		"nowriter", "race",
	};
	char *name;
	int i;

	while ((name = strsep(&str, ",")) != NULL) {
		i = match_string(names, ARRAY_SIZE(names), name);
		if (i < 0)
			pr_warn("vmtrace_break: unknown control %s\n", name);
		else
			vmtrace_break |= BIT(i);
	}
	if (vmtrace_broken(VMTRACE_BREAK_LATE))
		vmtrace_late_break();
	if (vmtrace_broken(VMTRACE_BREAK_RACE))
		vmtrace_late_race();
	return 1;
}
__setup("vmtrace_break=", vmtrace_break_setup);
#endif

bool vmtrace_mm_traced(const struct mm_struct *mm)
{
	return vmtrace_mm_id(mm);
}

u32 vmtrace_mm_id(const struct mm_struct *mm)
{
	u32 id = vmtrace_number(mm);

	return id >= READ_ONCE(vmtrace_first_id) ? id : 0;
}

/* Whether references are recorded, too. */
bool vmtrace_mm_refs(const struct mm_struct *mm)
{
	/* The number of a quiet one is negative. */
	return (s32)READ_ONCE(mm->vmtrace_id) >=
	       (s32)READ_ONCE(vmtrace_first_id);
}

static pte_t vmtrace_pte_disable(pte_t pte)
{
	pteval_t old = pte_val(pte), new;

	new = (old & ~_PAGE_PRESENT) | _PAGE_PROTNONE;
	return __pte(flip_protnone_guard(old, new, PTE_PFN_MASK));
}

static pte_t vmtrace_pte_enable(pte_t pte)
{
	pteval_t old = pte_val(pte), new;

	new = (old & ~_PAGE_PROTNONE) | _PAGE_PRESENT;
	return __pte(flip_protnone_guard(old, new, PTE_PFN_MASK));
}

static u32 vmtrace_pte_bits(pte_t pte)
{
	return (pte_young(pte) ? VMTRACE_PTE_YOUNG : 0) |
	       (pte_dirty(pte) ? VMTRACE_PTE_DIRTY : 0);
}

/*
 * @pte was cleared at @ptep, so its stay in the set is over. Returns the PTE as it would
 * be if this tracer had not cleared its accessed bit.
 */
static pte_t vmtrace_clear(struct mm_struct *mm, unsigned long addr,
			   const pte_t *ptep, pte_t pte)
{
	unsigned int shift;
	int closed;

	if (!vmtrace_mm_refs(mm))
		return pte;
	shift = vmtrace_pte_shift(pte);
	if (!shift)
		return pte;
	addr &= ~0UL << shift;
	/* Only if its page table and its address space remain. */
	if (vmtrace_broken(VMTRACE_BREAK_NOCLOSE) &&
	    vmtrace_why() == VMTRACE_WHY_ADVISED)
		return pte;

	vmtrace_late(VMTRACE_LATE_CLOSING);
	closed = vmtrace_rs_close(mm->vmtrace_id, addr, vmtrace_pte_bits(pte),
				  vmtrace_why(), vmtrace_entry(ptep));
	if (closed == VMTRACE_CLOSE_FUNNY) {
		if (!vmtrace_is_attaching(mm))
			vmtrace_rs_funny();
		return pte;
	}
	if (closed == VMTRACE_CLOSE_YOUNG)
		pte = pte_mkyoung(pte);
	vmtrace_late(VMTRACE_LATE_CLOSED);

	/*
	 * The caller may store the PTE again and decide by its own copy of it
	 * that no flush is needed, although the stored PTE is disabled. Without
	 * this flush, the stale entry would hide the next references. It takes
	 * the place of the flush at eviction, which this stay won't see. Memory
	 * that ends with its address space is not referenced any more.
	 */
	if (atomic_read(&mm->mm_users) &&
	    !vmtrace_broken(VMTRACE_BREAK_NOREFLUSH))
		flush_tlb_mm_range(mm, addr, addr + (1UL << shift), shift,
				   false);
	return pte;
}

/*
 * @pte was cleared at @ptep and is no member's. If the page is gone for good, an admission
 * that has its number already must not take a new page for it. It would do so if
 * the new page's PTE is equal: that of the zero page, or of a frame that was freed
 * and used again. What ends with its address space is not referenced any more.
 */
static void vmtrace_overtake(struct mm_struct *mm, unsigned long addr,
			     const pte_t *ptep, pte_t pte)
{
	const unsigned int why = vmtrace_why();

	if ((why == VMTRACE_WHY_ADVISED || why == VMTRACE_WHY_TRUNCATED) &&
	    vmtrace_pte_disabled(pte) && vmtrace_mm_refs(mm) &&
	    atomic_read(&mm->mm_users))
		vmtrace_rs_dropped(mm->vmtrace_id,
				   addr & (~0UL << vmtrace_pte_shift(pte)),
				   vmtrace_entry(ptep));
}

/* What to store at @ptep, and at those after it, instead of @pte. */
static pte_t vmtrace_filter(struct mm_struct *mm, unsigned long addr,
			    pte_t *ptep, pte_t pte, unsigned int nr,
			    bool access_flags)
{
	unsigned int shift;
	pte_t old;

	if (!vmtrace_mm_refs(mm))
		return pte;
	if (vmtrace_broken(access_flags ? VMTRACE_BREAK_NOACCESS :
					  VMTRACE_BREAK_NOFILTER))
		return pte;
	shift = vmtrace_pte_shift(pte);
	if (!shift) {
		vmtrace_rs_uncovered();
		return pte;
	}
	addr &= ~0UL << shift;

	vmtrace_late(VMTRACE_LATE_FILTERING);
	old = ptep_get(ptep);
	if (!vmtrace_pte_enabled(old))
		return vmtrace_pte_disable(pte);

	if (nr == 1 && pte_pfn(old) == pte_pfn(pte)) {
		/*
		 * An update of a live member in place. If a fault makes it
		 * dirty, that is a store. The dirty bit may not show that store
		 * at the end of the stay, because it may have been set before.
		 */
		if (access_flags && pte_write(pte) && pte_dirty(pte) &&
		    !pte_write(old) && !vmtrace_broken(VMTRACE_BREAK_NOUPGRADE))
			vmtrace_rs_dirtied(mm->vmtrace_id, addr,
					   vmtrace_entry(ptep));
		/* DAMON stores a huge entry to clear its accessed bit. */
		if (pte_young(old) && !pte_young(pte))
			vmtrace_rs_aged(mm->vmtrace_id, addr, true,
					vmtrace_entry(ptep));
		return pte;
	}

	/* Replaced without having been cleared. */
	vmtrace_clear(mm, addr, ptep, old);
	return vmtrace_pte_disable(pte);
}

/* set_ptes() of enabled PTEs in an address space with a number. */
void __vmtrace_slow __vmtrace_set_ptes(struct mm_struct *mm, unsigned long addr,
				       pte_t *ptep, pte_t pte, unsigned int nr)
{
	pte = vmtrace_filter(mm, addr, ptep, pte, nr, false);
	set_ptes_unfiltered(mm, addr, ptep, pte, nr);
}

/*
 * set_pte_range()'s set_ptes(). Faults map around themselves within one page
 * table, so the slot in that table gives the address of @vmf->pte.
 */
void __vmtrace_slow __vmtrace_set_range(struct vm_fault *vmf, pte_t pte,
					unsigned int nr)
{
	unsigned long slot = offset_in_page(vmf->pte) / sizeof(pte_t);

	set_ptes(vmf->vma->vm_mm, (vmf->address & PMD_MASK) + slot * PAGE_SIZE,
		 vmf->pte, pte, nr);
}

pte_t __vmtrace_slow __vmtrace_filter_access(struct mm_struct *mm,
					     unsigned long addr, pte_t *ptep,
					     pte_t pte)
{
	return vmtrace_filter(mm, addr, ptep, pte, 1, true);
}

/* ptep_get_and_clear(), and its like for a whole address space. */
pte_t __vmtrace_slow __vmtrace_get_and_clear(struct mm_struct *mm,
					     unsigned long addr, pte_t *ptep)
{
	pte_t pte = native_ptep_get_and_clear(ptep);

	page_table_check_pte_clear(mm, addr, pte);
	if (vmtrace_pte_enabled(pte))
		return vmtrace_clear(mm, addr, ptep, pte);
	vmtrace_overtake(mm, addr, ptep, pte);
	return pte;
}

bool __vmtrace_slow __vmtrace_young(struct mm_struct *mm, unsigned long addr,
				    const pte_t *ptep, bool young)
{
	if (!vmtrace_mm_refs(mm) || vmtrace_broken(VMTRACE_BREAK_NOYOUNG))
		return young;
	return vmtrace_rs_aged(mm->vmtrace_id, addr, young,
			       vmtrace_entry(ptep));
}

bool __vmtrace_slow __vmtrace_hidden(struct mm_struct *mm, unsigned long addr,
				     const pte_t *ptep)
{
	return vmtrace_mm_refs(mm) &&
	       vmtrace_rs_hidden(mm->vmtrace_id, addr, vmtrace_entry(ptep));
}

void __vmtrace_slow __vmtrace_leaf(struct mm_struct *mm)
{
	if (vmtrace_mm_refs(mm))
		vmtrace_rs_uncovered();
}

bool __vmtrace_slow __vmtrace_no_pmd_leaf(struct mm_struct *mm)
{
	return vmtrace_mm_refs(mm) && !vmtrace_broken(VMTRACE_BREAK_PMDLEAF);
}

bool __vmtrace_slow __vmtrace_no_pmd_move(struct mm_struct *mm)
{
	return vmtrace_mm_refs(mm) && !vmtrace_broken(VMTRACE_BREAK_PMDMOVE);
}

/*
 * Disable a member's PTE; with @young, give back the accessed bit that
 * vmtrace_pte_sweep() took. Returns the PTE as it was, or 0 if it is not enabled.
 * Called by Rust under the EVMS's lock.
 */
u64 vmtrace_pte_take(pte_t *ptep, bool young)
{
	pte_t old = ptep_get(ptep), now, new;

	while (vmtrace_pte_enabled(old)) {
		new = vmtrace_pte_disable(young ? pte_mkyoung(old) : old);
		now.pte = cmpxchg(&ptep->pte, old.pte, new.pte);
		if (likely(now.pte == old.pte))
			return old.pte;
		old = now;
	}
	return 0;
}

/* Clear a member's accessed bit. Called by Rust under the EVMS's lock. */
void vmtrace_pte_sweep(pte_t *ptep, u32 *last)
{
	pte_t old = ptep_get(ptep);

	*last = vmtrace_pte_bits(old);
	if (pte_young(old))
		clear_bit(_PAGE_BIT_ACCESSED, (unsigned long *)&ptep->pte);
}

/*
 * Give the page table of @ptep its words. The page table may be unlinked already. It is
 * freed only later, and its words with it.
 */
static void vmtrace_set_words(pte_t *ptep, struct page *words)
{
	struct ptdesc *table = virt_to_ptdesc(ptep);

	set_page_private(words, (unsigned long)ptep & PAGE_MASK);
	if (cmpxchg(&table->pt_vmtrace, NULL, page_address(words))) {
		set_page_private(words, 0);
		__free_page(words);
	}
}

/* Whether one of the entries that @words are of is a member's. */
static bool vmtrace_has_member(const u64 *words)
{
	int i;

	for (i = 0; i < PTRS_PER_PTE; i++)
		if (READ_ONCE(words[i]) & VMTRACE_WORD_MEMBER)
			return true;
	return false;
}

/*
 * A page table is freed, and its words, too. No member is in it: whoever frees it has cleared
 * its PTEs, which ends their stays. If that was missed, the set leads to freed memory.
 */
void __vmtrace_free_words(struct ptdesc *table)
{
	u64 *words = table->pt_vmtrace;

	table->pt_vmtrace = NULL;
	if (IS_ENABLED(CONFIG_VMTRACE_DEBUG) &&
	    WARN_ONCE(vmtrace_has_member(words),
		      "vmtrace: a page table is freed with a member in it\n"))
		return;
	set_page_private(virt_to_page(words), 0);
	free_page((unsigned long)words);
}

/* The size that an entry maps, by log2. */
static unsigned int vmtrace_entry_shift(unsigned long entry)
{
	if (likely(!(entry & VMTRACE_ENTRY_HUGE)))
		return PAGE_SHIFT;
	return entry & VMTRACE_ENTRY_PUD ? PUD_SHIFT : PMD_SHIFT;
}

/*
 * Called after a change of members' PTEs and before their lock is dropped, so
 * that the change is not visible while stale TLB entries are in use: a
 * reference through such an entry belongs to the earlier state.
 */
static void vmtrace_flush_range(struct mm_struct *mm, unsigned long start,
				unsigned long end, unsigned int shift)
{
	vmtrace_late(VMTRACE_LATE_FLUSHING);
	if (!vmtrace_broken(VMTRACE_BREAK_NOFLUSH))
		flush_tlb_mm_range(mm, start, end, shift, false);
}

/* The same for one page. */
static void vmtrace_flush(const struct vmtrace_victim *v)
{
	unsigned int shift = vmtrace_entry_shift(v->entry);

	vmtrace_flush_range(v->mm, v->addr, v->addr + (1UL << shift), shift);
}

/*
 * End a victim's stay, and those of its batch. Its PTE's lock is held; if the stay
 * has ended already, nothing is done.
 */
static void vmtrace_evict_locked(const struct vmtrace_victim *v, pte_t *ptep,
				 u32 why, u64 now, u64 end)
{
	struct vmtrace_batch disabled = {};

	vmtrace_rs_evict(v->ordinal, ptep, why, now, end, &disabled);
	if (!disabled.mm)
		return;
	if (unlikely(v->entry & VMTRACE_ENTRY_HUGE))
		vmtrace_flush(v);
	else
		vmtrace_flush_range(disabled.mm, disabled.start, disabled.end,
				    PAGE_SHIFT);
}

/* Whether a PMD leads to a page table. Not pmd_bad(), which looks at more. */
static __always_inline bool vmtrace_pmd_table(pmd_t pmd)
{
	return (pmd_val(pmd) & (_PAGE_PRESENT | _PAGE_PSE)) == _PAGE_PRESENT;
}

static void vmtrace_drop(const struct vmtrace_victim *v)
{
	if (v->grabbed)
		mmdrop(v->mm);
}

/*
 * Lock the PTE of a victim. It was chosen in this same section without preemption, so its
 * page table is still there, whatever became of the victim: what is not in use any more is
 * freed after a grace period of RCU, which such a section keeps from ending. Whether the
 * victim is still a member shows when the PTE is locked.
 *
 * Neither its mmap_lock nor its VMA lock is held: one might have to wait long for
 * either. The mm_struct is pinned.
 */
pte_t *vmtrace_lock_victim(const struct vmtrace_victim *v, spinlock_t **ptlp)
{
	pte_t *ptep = vmtrace_entry_pte(v->entry);

	vmtrace_late(VMTRACE_LATE_EVICTING);
	*ptlp = unlikely(v->entry & VMTRACE_ENTRY_HUGE) ?
		vmtrace_huge_lockptr(v->mm, ptep, v->entry) :
		ptep_lockptr(v->mm, ptep);
	spin_lock(*ptlp);
	return ptep;
}

/*
 * The PTE of a victim in a page table that can be locked at once, or is locked by
 * the caller already. Otherwise NULL. Called by Rust under the EVMS's lock, which
 * keeps the victim and so its page table. Whoever has a page table's lock may wait
 * for the EVMS's, so nothing waits here.
 */
pte_t *vmtrace_trylock_victim(struct mm_struct *mm, unsigned long entry,
			      struct vmtrace_locked *l)
{
	pte_t *ptep = vmtrace_entry_pte(entry);
	spinlock_t *ptl = ptep_lockptr(mm, ptep);

	/* Without a lock for each page table, one is for all of them. */
	if (ptl != ptep_lockptr(l->a.mm, l->ptep)) {
		if (!spin_trylock(ptl))
			return NULL;
		l->far = ptl;
	}
	return ptep;
}

/* Disable a victim, for the admission numbered @end or VMTRACE_END_NOW. */
static void vmtrace_evict(const struct vmtrace_victim *v, u32 why, u64 now,
			  u64 end)
{
	spinlock_t *ptl;
	pte_t *ptep;

	ptep = vmtrace_lock_victim(v, &ptl);
	vmtrace_evict_locked(v, ptep, why, now, end);
	spin_unlock(ptl);
	vmtrace_drop(v);
}

/* Clear the accessed bit of a page that came into the second segment. */
static void vmtrace_sweep(const struct vmtrace_victim *v)
{
	spinlock_t *ptl;
	pte_t *ptep;

	ptep = vmtrace_lock_victim(v, &ptl);
	if (vmtrace_rs_sweep(v->ordinal, ptep))
		vmtrace_flush(v);
	spin_unlock(ptl);
	vmtrace_drop(v);
}

/*
 * Pages that one admission can give a second chance. It bounds the time without
 * preemption; pages that come after are evicted, referenced or not.
 */
#define VMTRACE_CHANCES	16

/* Move the clock's hand on by one page. */
static int vmtrace_hand(struct vmtrace_reservation *r, struct mm_struct *mm,
			bool may)
{
	const struct vmtrace_victim v = r->victim;
	bool flush = false;
	spinlock_t *ptl;
	pte_t *ptep;
	int ret;

	ptep = vmtrace_lock_victim(&v, &ptl);
	ret = vmtrace_rs_hand(r, mm, ptep, may, &flush,
			      this_cpu_read(vmtrace_epoch));
	if (flush)
		vmtrace_flush(&v);
	spin_unlock(ptl);
	vmtrace_drop(&v);
	return ret;
}

/* Move it until there is a place. */
static noinline int vmtrace_turn(struct vmtrace_reservation *r,
				 struct mm_struct *mm)
{
	int ret, chances = 0;

	do {
		ret = vmtrace_hand(r, mm, chances++ < VMTRACE_CHANCES);
		if (ret == VMTRACE_RESERVE_AGAIN)
			ret = vmtrace_rs_reserve(r, mm,
						 this_cpu_read(vmtrace_epoch));
	} while (ret == VMTRACE_RESERVE_HAND);
	return ret;
}

/**
 * vmtrace_resize - make the set smaller
 * @to: pages enabled at once from now on
 *
 * Returns 0, -EINVAL if it can't be that small, -EINTR after a fatal signal,
 * -ENODATA if STOP was called, which waits for this, or -ETIMEDOUT if there is no
 * room for records: then it may have a size in between.
 */
int vmtrace_resize(u32 to)
{
	struct vmtrace_victim victim;
	int ret, waits = 0;

	for (;;) {
		preempt_disable();
		ret = vmtrace_rs_shrink(&victim, to);
		if (ret == VMTRACE_SHRINK_EVICT)
			vmtrace_evict(&victim, VMTRACE_WHY_EVICTED,
				      ktime_get_mono_fast_ns(),
				      VMTRACE_END_NOW);
		preempt_enable();
		if (ret == VMTRACE_SHRINK_DONE || ret == VMTRACE_SHRINK_REFUSED)
			break;
		/* In each round: a million members take almost a second. */
		if (vmtrace_ending())
			return -ENODATA;
		if (fatal_signal_pending(current))
			return -EINTR;
		if (ret == VMTRACE_SHRINK_WAIT) {
			vmtrace_rs_kick();
			if (++waits > 5 * MSEC_PER_SEC)
				return -ETIMEDOUT;
			fsleep(1000);
		}
		cond_resched();
	}
	return ret == VMTRACE_SHRINK_DONE ? 0 : -EINVAL;
}

/* Disable a member, and those after it that are in the same page table. */
static void vmtrace_drain(const struct vmtrace_victim *v,
			  struct vmtrace_cursor *c)
{
	const u64 now = ktime_get_mono_fast_ns();
	unsigned long start = v->addr & PMD_MASK;
	spinlock_t *ptl;
	pte_t *ptep;

	if (v->entry & VMTRACE_ENTRY_HUGE) {
		vmtrace_evict(v, VMTRACE_WHY_DRAINED, now, VMTRACE_END_NOW);
		return;
	}
	ptep = vmtrace_lock_victim(v, &ptl);
	/* Before the lock is dropped: see vmtrace_flush_range(). */
	if (vmtrace_rs_drain(v, c, ptep - pte_index(v->addr), now) &&
	    !vmtrace_broken(VMTRACE_BREAK_NOFLUSH))
		flush_tlb_mm_range(v->mm, start, start + PMD_SIZE, PAGE_SHIFT,
				   false);
	spin_unlock(ptl);
	vmtrace_drop(v);
}

/*
 * Disable all members, at the end of a trace: none can be added meanwhile. Each
 * slot of the set is looked at once.
 */
void vmtrace_evict_all(void)
{
	struct vmtrace_cursor c = {};
	struct vmtrace_victim victim;
	bool more;

	do {
		preempt_disable();
		more = vmtrace_rs_next_member(&victim, &c);
		if (victim.mm)
			vmtrace_drain(&victim, &c);
		preempt_enable();
		cond_resched();
	} while (more);
}

/* Whether a fault with @flags may enable @pte, or must come again first. */
static bool vmtrace_may_enable(pte_t pte, unsigned int flags)
{
	return vmtrace_pte_disabled(pte) &&
	       (pte_write(pte) || !(flags & FAULT_FLAG_WRITE));
}

/*
 * A load may go through a @pte that is dirty already, and a later store must
 * still be recorded. So move the dirty bit to the folio, where the kernel looks
 * too. A write-protected PTE can keep its dirty bit, because a store will
 * fault.
 */
static noinline pte_t vmtrace_move_dirty(pte_t pte)
{
	struct folio *folio;

	if (!pte_write(pte) || vmtrace_broken(VMTRACE_BREAK_NODIRTY))
		return pte;
	/* Memory that has no struct page of its own, or the page of zeros. */
	if (!pte_special(pte)) {
		folio = page_folio(pte_page(pte));
		if (!folio_test_dirty(folio))
			folio_mark_dirty(folio);
	}
	return pte_mkclean(pte);
}

static u64 vmtrace_access(unsigned long addr, unsigned int flags)
{
	u64 ref = VMTRACE_REF_READ;

	if (flags & FAULT_FLAG_WRITE)
		ref = VMTRACE_REF_WRITE | VMTRACE_REF_DIRTIED;
	else if (flags & FAULT_FLAG_INSTRUCTION)
		ref = VMTRACE_REF_EXEC;
	if (!(flags & FAULT_FLAG_USER))
		ref |= VMTRACE_REF_KERNEL;
	return (addr & PAGE_MASK) | ref;
}

/* What a disabled @pte becomes when an access with @flags enables it. */
static __always_inline pte_t vmtrace_pte_touched(pte_t pte, unsigned int flags)
{
	if (flags & FAULT_FLAG_WRITE)
		pte = pte_mkdirty(pte);
	return vmtrace_pte_enable(pte_mkyoung(pte));
}

/* Enable @pte for a fault with @flags. The PTE's lock is held. */
static void vmtrace_enable_pte(pte_t *ptep, pte_t pte, unsigned int flags)
{
	set_pte(ptep, vmtrace_pte_touched(pte, flags));
}

/* An access that found a disabled PTE, which allows it as it is. */
struct vmtrace_touch {
	struct mm_struct *mm;
	unsigned long addr;
	unsigned int flags;	/* FAULT_FLAG_* */
	unsigned long entry;	/* the handle of @ptep, or 0 */
	pte_t *ptep;
	pte_t pte;
	spinlock_t *ptl;	/* that of @ptep */
	/*
	 * Neither the VMA nor mmap_lock is locked. Then this is mmap_lock's count of
	 * its writers, as it was when nobody held it for writing.
	 */
	bool speculates;
	unsigned int seq;
};

/*
 * Fill in @a for the access @t, except the number. Returns what the PTE is to be when
 * the page is a member. The PTE's lock is held.
 */
static __always_inline pte_t
vmtrace_prepare(const struct vmtrace_touch *t, struct vmtrace_admission *a)
{
	pte_t pte = t->pte, touched;

	BUILD_BUG_ON(CONFIG_NR_CPUS > 1ULL << (32 - VMTRACE_TID_BITS));
	/* Hardly any is dirty, so look at it here. */
	if (!(t->flags & FAULT_FLAG_WRITE) && unlikely(pte_dirty(pte)))
		pte = vmtrace_move_dirty(pte);
	touched = vmtrace_pte_touched(pte, t->flags);
	a->mm = t->mm;
	a->entry = t->entry;
	a->page = vmtrace_access(t->addr, t->flags);
	a->mm_id = READ_ONCE(t->mm->vmtrace_id);
	a->tid_cpu = task_pid_nr(current) |
		     smp_processor_id() << VMTRACE_TID_BITS;
	/* That of an enabled PTE is not inverted. */
	a->pfn = min_t(unsigned long, pte_pfn(touched), U32_MAX);
	a->was_dirty = pte_dirty(pte);
	a->vtime = current->vmtrace_vtime;
	return touched;
}

/* The page is a member: enable its PTE, which becomes @touched. */
static __always_inline void
vmtrace_admitted(const struct vmtrace_touch *t, pte_t touched,
		 const struct vmtrace_admission *a, u64 seq)
{
	vmtrace_late(VMTRACE_LATE_ADMITTED);
	if (trace_vmtrace_ref_enabled())
		trace_vmtrace_ref(seq, a->mm_id, a->page, a->pfn);
	set_pte(t->ptep, touched);
}

/* Whether nobody has held mmap_lock for writing since the access found its PTE. */
static bool vmtrace_unchanged(const struct vmtrace_touch *t)
{
	return !t->speculates ||
	       !mmap_lock_speculate_retry(t->mm, t->seq) ||
	       vmtrace_broken(VMTRACE_BREAK_NOSEQ);
}

/*
 * Make the page a member, under the number that was taken for it. The PTE is locked
 * and still t->pte. False if the admission would come out of order, or the trace is
 * over, or the address space is not (yet) traced by the trace that the number is
 * of: a task may have been preempted after it had looked, until a later window.
 */
static bool vmtrace_admit_reserved(const struct vmtrace_touch *t, u64 ordinal)
{
	struct vmtrace_admission a;
	pte_t touched;
	u64 seq;

	touched = vmtrace_prepare(t, &a);
	a.ordinal = ordinal;
	/* As vmtrace_mm_refs(), after the number was taken. */
	if (unlikely((s32)a.mm_id < (s32)READ_ONCE(vmtrace_first_id)))
		return false;
	seq = vmtrace_rs_admit(&a);
	if (unlikely(seq == VMTRACE_NO_SEQ))
		return false;
	vmtrace_admitted(t, touched, &a, seq);
	return true;
}

/*
 * Finish an admission that could not be made in one hold of the locks. Its number has
 * been taken, and the PTE's lock is not held now. First disable the victim and sweep
 * the page that passed: other admissions rely on both, even if this one is given up.
 *
 * Preemption has been disabled since the number was taken. So at most one admission
 * for each CPU is on the way, which bounds the slots they can block; and no grace
 * period of RCU passes, which keeps the victim's page table.
 */
static int vmtrace_admit_far(const struct vmtrace_touch *t,
			     struct vmtrace_reservation *r)
{
	bool same, changed = false, admitted = false;
	struct vmtrace_touch now = *t;

	vmtrace_late(VMTRACE_LATE_RESERVED);
	/*
	 * The record is of the PTE that was there before the number was taken: an
	 * event about what replaced it may have a greater one. See Evms::admit().
	 */
	same = pte_same(ptep_get_lockless(t->ptep), t->pte);
	if (r->victim.mm)
		vmtrace_evict(&r->victim, VMTRACE_WHY_EVICTED, r->time,
			      r->ordinal);
	if (r->passed.mm)
		vmtrace_sweep(&r->passed);

	vmtrace_late(VMTRACE_LATE_ADMITTING);
	if (same || vmtrace_broken(VMTRACE_BREAK_NOORDER |
				   VMTRACE_BREAK_NOCOMPARE)) {
		spin_lock(t->ptl);
		now.pte = ptep_get(t->ptep);
		changed = !vmtrace_unchanged(t);
		if (!changed && vmtrace_may_enable(now.pte, t->flags) &&
		    (pte_same(now.pte, t->pte) ||
		     vmtrace_broken(VMTRACE_BREAK_NOORDER |
				    VMTRACE_BREAK_NOCOMPARE)))
			admitted = vmtrace_admit_reserved(&now, r->ordinal);
		spin_unlock(t->ptl);
	}
	if (!admitted) {
		vmtrace_late(VMTRACE_LATE_ABORTING);
		vmtrace_rs_abort(r->ordinal);
	}
	return changed ? VMTRACE_RESERVE_CHANGED : VMTRACE_RESERVE_GO;
}

/* Go on from an @answer, or take a number without the PTE's lock; and admit. */
static noinline int vmtrace_admit_apart(const struct vmtrace_touch *t,
					struct vmtrace_reservation *r,
					int answer)
{
	if (answer == VMTRACE_RESERVE_AGAIN)
		answer = vmtrace_rs_reserve(r, t->mm,
					    this_cpu_read(vmtrace_epoch));
	if (answer == VMTRACE_RESERVE_HAND)
		answer = vmtrace_turn(r, t->mm);
	if (answer == VMTRACE_RESERVE_GO || answer == VMTRACE_RESERVE_FAR)
		answer = vmtrace_admit_far(t, r);
	return answer;
}

/*
 * Whether an admission is to take its number before it takes the PTE's lock. Only
 * controls and delays ask for this: they need a gap between the number and the lock.
 */
static bool vmtrace_apart(void)
{
	return vmtrace_broken(VMTRACE_BREAK_NOORDER | VMTRACE_BREAK_NOCOMPARE) ||
	       vmtrace_late_apart();
}

/*
 * Admit a page in one hold of its page table's lock, and one of the EVMS's. This is
 * not enough in some cases: the victim's page table could not be locked at once, a
 * huge page is involved, another page must be swept first, or the clock's hand must
 * move. The PTE is locked and is t->pte. Returns VMTRACE_RESERVE_*: with _GO, the page
 * is a member, and enabled; with _FAR or _HAND, go on without the lock.
 */
static __always_inline int vmtrace_admit_here(const struct vmtrace_touch *t,
					      struct vmtrace_locked *l)
{
	pte_t touched;

	touched = vmtrace_prepare(t, &l->a);
	l->ptep = t->ptep;
	l->lock_seq = NULL;
	if (t->speculates && !vmtrace_broken(VMTRACE_BREAK_NOSEQ)) {
		l->lock_seq = &t->mm->mm_lock_seq.sequence;
		l->seq = t->seq;
	}
	l->epoch = this_cpu_read(vmtrace_epoch);
	l->far = NULL;
	l->disabled.mm = NULL;
	vmtrace_rs_admit_locked(l);
	/*
	 * The victims' PTEs are disabled, but not none. So their page table and their
	 * address space are there until its lock is dropped: whoever takes them away
	 * has to clear the PTEs first, under that lock.
	 */
	if (l->disabled.mm)
		vmtrace_flush_range(l->disabled.mm, l->disabled.start,
				    l->disabled.end, PAGE_SHIFT);
	if (l->far)
		spin_unlock(l->far);
	if (likely(l->answer == VMTRACE_RESERVE_GO))
		vmtrace_admitted(t, touched, &l->a, l->record);
	return l->answer;
}

/*
 * Admit a page whose PTE is disabled and needs nothing else: the re-reference,
 * which is nearly all that a traced program does. Preemption is disabled. Returns
 * VMTRACE_RESERVE_*; with _GO, the page was admitted, or another CPU was faster.
 *
 * The page table was found without its lock; that it holds t->pte, which is
 * present, when it is locked, says that it is still in its place. Then it is so
 * for a victim in the same page table too, and one lock does for both.
 *
 * If t->speculates: what is done under mmap_lock for writing also gets its event
 * under it. If nobody has held that lock for writing since before this admission
 * got its number, there are two kinds of such events. Some have smaller numbers,
 * and their changes are done. The others have greater numbers, and their changes
 * have not begun.
 */
static __always_inline int vmtrace_readmit(const struct vmtrace_touch *t)
{
	/* Set by vmtrace_rs_admit_locked(), as far as its answer says. */
	struct vmtrace_locked l __uninitialized;
	int answer = VMTRACE_RESERVE_GO;

	if (unlikely(vmtrace_apart())) {
		const struct vmtrace_touch copy = *t;

		return vmtrace_admit_apart(&copy, &l.r, VMTRACE_RESERVE_AGAIN);
	}
	spin_lock(t->ptl);
	l.full = false;
	if (likely(pte_same(ptep_get(t->ptep), t->pte)))
		answer = vmtrace_admit_here(t, &l);
	spin_unlock(t->ptl);
	if (unlikely(l.full))
		vmtrace_rs_kick();
	if (likely(answer == VMTRACE_RESERVE_GO))
		return answer;
	if (unlikely(answer == VMTRACE_RESERVE_FAR ||
		     answer == VMTRACE_RESERVE_HAND)) {
		/* A copy, so that *t need not be in memory. */
		const struct vmtrace_touch copy = *t;

		answer = vmtrace_admit_apart(&copy, &l.r, answer);
	}
	return answer;
}

/* Enable the PTE of an access without a record. */
static void vmtrace_heal(const struct vmtrace_touch *t)
{
	spin_lock(t->ptl);
	if (pte_same(ptep_get(t->ptep), t->pte))
		vmtrace_enable_pte(t->ptep, t->pte, t->flags);
	spin_unlock(t->ptl);
}

/*
 * Find the entry of a fault, for pte_unmap(). False if there is no page table.
 * Whoever locks it and finds t->pte there, which is present, knows that the table
 * is in its place. A huge page's entry is known, and its table is kept by the caller.
 */
static bool vmtrace_map_entry(struct vm_fault *vmf, pte_t *huge,
			      unsigned long kind, struct vmtrace_touch *t)
{
	pmd_t pmd;

	if (unlikely(kind)) {
		rcu_read_lock();
		t->ptep = huge;
		t->ptl = vmtrace_huge_lockptr(t->mm, huge, kind);
	} else {
		t->ptep = pte_offset_map_rw_nolock(t->mm, vmf->pmd, t->addr,
						   &pmd, &t->ptl);
		if (!t->ptep)
			return false;
	}
	t->pte = ptep_get_lockless(t->ptep);
	t->entry = vmtrace_entry(t->ptep);
	if (likely(t->entry))
		t->entry |= kind;
	return true;
}

/*
 * The same, and the page table has words. False also if there is no memory for them: then the
 * page is not enabled, and the access faults until there is.
 */
static bool vmtrace_map_words(struct vm_fault *vmf, pte_t *huge,
			      unsigned long kind, struct vmtrace_touch *t)
{
	struct page *words;

	if (!vmtrace_map_entry(vmf, huge, kind, t))
		return false;
	if (likely(t->entry || !vmtrace_pte_disabled(t->pte)))
		return true;
	pte_unmap(t->ptep);
	words = alloc_page(GFP_KERNEL | __GFP_ZERO);
	if (!words)
		return false;
	if (!vmtrace_map_entry(vmf, huge, kind, t)) {
		__free_page(words);
		return false;
	}
	vmtrace_set_words(t->ptep, words);
	t->entry = vmtrace_entry(t->ptep) | kind;
	/*
	 * Without words, a drop of the page was not noted. So look at the PTE again. The
	 * number is taken after this.
	 */
	t->pte = ptep_get_lockless(t->ptep);
	return true;
}

/**
 * vmtrace_admit_entry - enable the page of a fault and make it a member
 * @vmf: a fault that succeeded; its VMA is still locked
 * @huge: the entry of a huge page, or NULL
 * @kind: what the handle of that entry has in its low bits, or 0
 *
 * Does nothing if the PTE was not disabled by the tracer, if another CPU changes the
 * PTE meanwhile, or if there is no room for one more record. In the last case the
 * access faults again, and waits before that fault takes a lock (vmtrace_throttle()).
 * So each admission is recorded exactly once. If the trace is over, the PTE is enabled
 * without a record.
 */
void vmtrace_admit_entry(struct vm_fault *vmf, pte_t *huge, unsigned long kind)
{
	struct vmtrace_touch t = {
		.mm = vmf->vma->vm_mm,
		.addr = vmf->address,
		.flags = vmf->flags,
	};
	int answer;

	if (!vmtrace_mm_refs(t.mm))
		return;

	vmtrace_late(VMTRACE_LATE_FAULTED);
	if (!vmtrace_map_words(vmf, huge, kind, &t))
		return;
	if (vmtrace_may_enable(t.pte, vmf->flags)) {
		preempt_disable();
		answer = vmtrace_readmit(&t);
		preempt_enable();
		if (unlikely(answer == VMTRACE_RESERVE_OFF))
			vmtrace_heal(&t);
	}
	pte_unmap(t.ptep);
}

/* The same for a PTE. */
void vmtrace_admit(struct vm_fault *vmf)
{
	vmtrace_admit_entry(vmf, NULL, 0);
}

/* Enable a locked entry of a fault without a record, if that is all it needs. */
void vmtrace_heal_pte(struct vm_fault *vmf, pte_t *ptep)
{
	pte_t pte = ptep_get(ptep);

	if (vmtrace_may_enable(pte, vmf->flags))
		vmtrace_enable_pte(ptep, pte, vmf->flags);
}

/*
 * Whether nobody holds mmap_lock for writing. After a task reads a sequence count,
 * KCSAN treats its next 1,000 accesses as atomic and watches none of them. An admission
 * is more than a reader, so undo that.
 */
static __always_inline bool vmtrace_unlocked(struct mm_struct *mm,
					     unsigned int *seq)
{
	bool unlocked = mmap_lock_speculate_try_begin(mm, seq);

	kcsan_atomic_next(0);
	return unlocked || vmtrace_broken(VMTRACE_BREAK_NOWRITER);
}

/* Find the PTE of an address without locks. False if there is no page table. */
static __always_inline bool vmtrace_find_pte(struct vmtrace_touch *t)
{
	pgd_t *pgdp = pgd_offset(t->mm, t->addr);
	p4d_t *p4dp, p4d;
	pud_t *pudp, pud;
	pmd_t *pmdp, pmd;
	pgd_t pgd;

	pgd = pgdp_get(pgdp);
	if (pgd_none(pgd))
		return false;
	p4dp = p4d_offset_lockless(pgdp, pgd, t->addr);
	p4d = p4dp_get(p4dp);
	if (!p4d_present(p4d))
		return false;
	pudp = pud_offset_lockless(p4dp, p4d, t->addr);
	pud = pudp_get(pudp);
	if (!pud_present(pud) || pud_leaf(pud))
		return false;
	pmdp = pmd_offset_lockless(pudp, pud, t->addr);
	pmd = pmdp_get_lockless(pmdp);
	if (!vmtrace_pmd_table(pmd))
		return false;
	t->ptl = pte_lockptr(t->mm, &pmd);
	t->ptep = pte_offset_kernel(&pmd, t->addr);
	t->pte = ptep_get_lockless(t->ptep);
	t->entry = vmtrace_entry_in(page_ptdesc(pmd_page(pmd)), t->ptep);
	return true;
}

/* __pkru_allows_pkey(), in line. */
static __always_inline bool vmtrace_key_allows(u16 pkey, bool write)
{
	const u32 pkru = read_pkru();

	return __pkru_allows_read(pkru, pkey) &&
	       (!write || __pkru_allows_write(pkru, pkey));
}

/*
 * Whether a disabled PTE allows an access, as its VMA does: it has kept the rights
 * and the protection key. What is not allowed here is looked at again by the fault's
 * usual path, so this may say no too often.
 */
static __always_inline bool vmtrace_allows(pte_t pte, unsigned int flags)
{
	const bool write = flags & FAULT_FLAG_WRITE;
	const bool fetch = flags & FAULT_FLAG_INSTRUCTION;
	pteval_t needs = 0;

	if (write)
		needs |= _PAGE_RW;
	if (fetch)
		needs |= _PAGE_NX;
	/*
	 * RW permits and NX forbids. With RW inverted, a set bit forbids in both cases.
	 * Not pte_write(), which is true for a shadow stack, too.
	 */
	if (pte_uffd(pte) || ((pte_val(pte) ^ _PAGE_RW) & needs))
		return vmtrace_broken(VMTRACE_BREAK_NORIGHTS);
	return fetch || vmtrace_key_allows(pte_flags_pkey(pte_val(pte)), write) ||
	       vmtrace_broken(VMTRACE_BREAK_NOKEYS);
}

/*
 * Give words to the page table of an access. False if there is no page table, or no memory.
 *
 * The allocation may have slept, so the trace may be over. Then khugepaged may take a page
 * table away: it sends an IPI to all CPUs and does not wait for a grace period. Interrupts
 * are disabled here, so the IPI waits, as it does for GUP-fast.
 */
static bool vmtrace_touch_words(struct mm_struct *mm, unsigned long addr)
{
	struct vmtrace_touch t = { .mm = mm, .addr = addr };
	struct page *words = alloc_page(GFP_KERNEL | __GFP_ZERO);
	unsigned long flags;
	bool found;

	if (!words)
		return false;
	local_irq_save(flags);
	found = vmtrace_mm_refs(mm) && vmtrace_find_pte(&t);
	if (found)
		vmtrace_set_words(t.ptep, words);
	local_irq_restore(flags);
	if (!found)
		__free_page(words);
	return found;
}

/* A page table had no words: give it some, and try again. */
static noinline bool vmtrace_touch_again(struct mm_struct *mm,
					 unsigned long addr,
					 unsigned int flags)
{
	return vmtrace_touch_words(mm, addr) &&
	       __vmtrace_touch(mm, addr, flags);
}

/**
 * __vmtrace_touch - a page fault, before its VMA is looked up
 * @mm: the address space, which is that of this task
 * @address: of user memory, or of the vsyscall page, whose PTE is never disabled
 * @flags: FAULT_FLAG_WRITE, _INSTRUCTION and _USER of the access
 *
 * A re-reference needs neither its VMA nor mmap_lock: its PTE shows enough. Returns
 * true if the fault is done: the access comes again. Otherwise nothing was admitted,
 * and the usual path is to be taken. See Documentation/mm/vmtrace.rst.
 */
bool __vmtrace_touch(struct mm_struct *mm, unsigned long address,
		     unsigned int flags)
{
	struct vmtrace_touch t = {
		.mm = mm,
		.addr = address,
		.flags = flags,
		.speculates = true,
	};
	int answer = VMTRACE_RESERVE_OFF;
	bool wordless = false;

	/* It keeps this page table, too: see vmtrace_admit_far(). */
	preempt_disable();
	if (vmtrace_mm_refs(mm) && vmtrace_unlocked(mm, &t.seq) &&
	    vmtrace_find_pte(&t) && vmtrace_pte_disabled(t.pte) &&
	    vmtrace_allows(t.pte, flags)) {
		vmtrace_late(VMTRACE_LATE_FAULTING);
		wordless = !t.entry;
		if (likely(!wordless))
			answer = vmtrace_readmit(&t);
	}
	preempt_enable();
	if (unlikely(wordless))
		return vmtrace_touch_again(mm, address, flags);
	return answer != VMTRACE_RESERVE_OFF &&
	       answer != VMTRACE_RESERVE_CHANGED;
}

/**
 * vmtrace_fault - a fault found a PTE that this tracer disabled
 * @vmf: the fault; vmf->pte is mapped, vmf->orig_pte was read without its lock
 *
 * Returns true if nothing but enabling it is needed, and does it. In an address
 * space that is not traced (any more) that is all: what a trace leaves behind
 * heals on touch.
 */
bool vmtrace_fault(struct vm_fault *vmf)
{
	const struct vmtrace_touch t = {
		.mm = vmf->vma->vm_mm,
		.addr = vmf->address,
		.flags = vmf->flags,
		.entry = vmtrace_entry(vmf->pte),
		.ptep = vmf->pte,
		.pte = vmf->orig_pte,
		.ptl = vmf->ptl,
	};
	int answer;

	if ((vmf->flags & (FAULT_FLAG_WRITE | FAULT_FLAG_UNSHARE)) &&
	    !pte_write(vmf->orig_pte))
		return false;

	if (unlikely(!vmtrace_mm_refs(t.mm))) {
		vmtrace_heal(&t);
	} else if (unlikely(!t.entry)) {
		/* vmtrace_admit(), at the end of this fault, allocates words and admits. */
	} else if (!(vmf->flags & FAULT_FLAG_NOREF)) {
		vmtrace_late(VMTRACE_LATE_FAULTING);
		preempt_disable();
		answer = vmtrace_readmit(&t);
		preempt_enable();
		if (unlikely(answer == VMTRACE_RESERVE_OFF))
			vmtrace_heal(&t);
		/* The end of this fault has nothing left to admit. */
		vmf->flags |= FAULT_FLAG_NOREF;
	}
	pte_unmap(t.ptep);
	return true;
}

/* Disable or enable one PTE at attach or detach. The PTE's lock is held. */
void vmtrace_pte_switch(pte_t *ptep, struct mm_struct *mm, unsigned long addr,
			bool disable)
{
	pte_t old = ptep_get(ptep), new;

	do {
		if (disable) {
			if (!vmtrace_pte_enabled(old) ||
			    !vmtrace_pte_shift(old) ||
			    vmtrace_rs_member(mm->vmtrace_id, addr,
					      vmtrace_entry(ptep)))
				return;
			new = vmtrace_pte_disable(old);
		} else {
			if (!vmtrace_pte_disabled(old))
				return;
			new = vmtrace_pte_enable(old);
		}
	} while (!try_cmpxchg((long *)&ptep->pte, (long *)&old, *(long *)&new));
}
