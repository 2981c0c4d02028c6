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
 * Lock order: mmap_lock or VMA lock -> page table lock -> the lock of a ring, of a CPU's
 * references or of its events (in Rust). Nobody waits for a page table lock with another
 * one held, or with the lock of a ring held: a victim is disabled under the lock of the
 * page to be admitted if that lock is for both, or if the victim's is free. Otherwise it
 * is disabled before the lock of that page is taken again.
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
struct vmtrace_view vmtrace_view;

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
 * Called by Rust, with the PTE's lock held.
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

/* Clear a member's accessed bit. Called by Rust, with the PTE's lock held. */
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
static void vmtrace_set_words(struct mm_struct *mm, pte_t *ptep,
			      struct page *words)
{
	struct ptdesc *table = virt_to_ptdesc(ptep);

	set_page_private(words, (unsigned long)ptep & PAGE_MASK);
	words->__folio_index = (unsigned long)mm;
	if (cmpxchg(&table->pt_vmtrace, NULL, page_address(words))) {
		set_page_private(words, 0);
		__free_page(words);
	}
}

/*
 * Huge pages of PUD size have been members. The lock of their page tables is that of the
 * address space, and whoever finds such a member by its number locks it: see
 * vmtrace_lock_entry().
 */
static bool vmtrace_had_puds;

/* An address space has come to its end: wait until nobody locks it for its members' sake. */
void vmtrace_wait_unused(void)
{
	if (READ_ONCE(vmtrace_had_puds))
		synchronize_rcu_expedited();
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

/* The same for what Rust has changed, under the lock of @entry's page table. */
void vmtrace_flush_entry(unsigned long entry, const struct vmtrace_batch *b)
{
	unsigned int shift = vmtrace_entry_shift(entry);
	unsigned long end = b->end;

	if (!b->mm)
		return;
	if (unlikely(shift != PAGE_SHIFT))
		end = b->start + (1UL << shift);
	vmtrace_flush_range(b->mm, b->start, end, shift);
}

/* Whether a PMD leads to a page table. Not pmd_bad(), which looks at more. */
static __always_inline bool vmtrace_pmd_table(pmd_t pmd)
{
	return (pmd_val(pmd) & (_PAGE_PRESENT | _PAGE_PSE)) == _PAGE_PRESENT;
}

/* The lock of the page table of an entry. */
static spinlock_t *vmtrace_entry_lockptr(unsigned long entry, pte_t *ptep)
{
	struct mm_struct *mm;

	/* Page tables of PTEs have locks of their own: see Kconfig. */
	if (likely(!(entry & VMTRACE_ENTRY_HUGE)))
		return ptep_lockptr(NULL, ptep);
	mm = (struct mm_struct *)virt_to_page((void *)entry)->__folio_index;
	return vmtrace_huge_lockptr(mm, ptep, entry);
}

/*
 * Lock the page table of an entry that was a member's in this same section without
 * preemption. So its page table is still there, whatever became of the member: what is not
 * in use any more is freed after a grace period of RCU, which such a section keeps from
 * ending. Whether it is still a member's shows when it is locked.
 *
 * Neither its mmap_lock nor its VMA lock is held: one might have to wait long for
 * either.
 */
pte_t *vmtrace_lock_entry(unsigned long entry, spinlock_t **ptlp)
{
	pte_t *ptep = vmtrace_entry_pte(entry);

	vmtrace_late(VMTRACE_LATE_EVICTING);
	*ptlp = vmtrace_entry_lockptr(entry, ptep);
	spin_lock(*ptlp);
	return ptep;
}

void vmtrace_unlock_entry(spinlock_t *ptl)
{
	spin_unlock(ptl);
}

/*
 * The same for the PTE of a member, if the lock is free; otherwise NULL. The caller has the
 * lock of another page table. Whoever has that of the member's may wait for the caller's,
 * so nothing waits here.
 */
pte_t *vmtrace_trylock_entry(unsigned long entry, spinlock_t **ptlp)
{
	pte_t *ptep = vmtrace_entry_pte(entry);

	*ptlp = ptep_lockptr(NULL, ptep);
	return spin_trylock(*ptlp) ? ptep : NULL;
}

/* End the stays of a member, and of those after it that are in the same page table. */
static void vmtrace_drain(struct vmtrace_cursor *c, u32 why)
{
	struct vmtrace_batch disabled = {};
	spinlock_t *ptl;
	pte_t *ptep;

	ptep = vmtrace_lock_entry(c->entry, &ptl);
	vmtrace_rs_drain(c, ptep, why, ktime_get_mono_fast_ns(), &disabled);
	/* Before the lock is dropped: see vmtrace_flush_range(). */
	vmtrace_flush_entry(c->entry, &disabled);
	vmtrace_unlock_entry(ptl);
}

/* The same for all members with numbers below @end, or for all that there are. */
static void vmtrace_drain_all(u64 end, u32 why)
{
	struct vmtrace_cursor c = { .end = end };
	bool more;

	do {
		preempt_disable();
		more = vmtrace_rs_next_member(&c);
		if (c.entry)
			vmtrace_drain(&c, why);
		preempt_enable();
		cond_resched();
	} while (more);
}

/*
 * Disable all members, at the end of a trace: none can be added meanwhile. Each
 * slot of the set is looked at once.
 */
void vmtrace_evict_all(void)
{
	vmtrace_drain_all(0, VMTRACE_WHY_DRAINED);
}

/* Pages by which a set is made smaller while no admission can be made. */
#define VMTRACE_SHRINK_STEP	(1 << 16)

/* Who pauses the set has this. Only waits for CPUs that run without preemption. */
static DEFINE_MUTEX(vmtrace_pausing);

/* Let no admission begin, and wait for those on the way. */
void vmtrace_pause(void)
{
	mutex_lock(&vmtrace_pausing);
	vmtrace_rs_pause(true);
	synchronize_rcu_expedited();
}

void vmtrace_go_on(void)
{
	vmtrace_rs_pause(false);
	mutex_unlock(&vmtrace_pausing);
}

/* Make the set as large as @n, if there is room for the records of what was beyond. */
static bool vmtrace_try_resize(u32 n)
{
	u64 begin;
	bool done;

	vmtrace_pause();
	begin = vmtrace_rs_begin_of(n);
	if (begin)
		vmtrace_drain_all(begin, VMTRACE_WHY_EVICTED);
	preempt_disable();
	done = vmtrace_rs_shrink(begin);
	preempt_enable();
	if (done)
		vmtrace_rs_sized(n);
	vmtrace_go_on();
	return done;
}

/* The same, and wait for room. */
static int vmtrace_resize_step(u32 n)
{
	unsigned long end = jiffies + 5 * HZ;

	while (!vmtrace_try_resize(n)) {
		if (vmtrace_ending())
			return -ENODATA;
		if (fatal_signal_pending(current))
			return -EINTR;
		if (time_after(jiffies, end))
			return -ETIMEDOUT;
		vmtrace_rs_kick();
		fsleep(1000);
	}
	return 0;
}

/**
 * vmtrace_resize - change the size of the set
 * @from: its size
 * @to: pages enabled at once from now on
 *
 * Admissions are made meanwhile, except for moments: most members that go are disabled
 * first, and the size changes in steps.
 *
 * Returns 0, -EINTR after a fatal signal, -ENODATA if STOP was called, which waits for
 * this, or -ETIMEDOUT if there is no room for records: then it may have a size in between.
 */
int vmtrace_resize(u32 from, u32 to)
{
	u64 begin = to < from ? vmtrace_rs_begin_of(to) : 0;
	int ret;

	if (begin)
		vmtrace_drain_all(begin, VMTRACE_WHY_EVICTED);
	do {
		from = to + VMTRACE_SHRINK_STEP < from ?
		       from - VMTRACE_SHRINK_STEP : to;
		ret = vmtrace_resize_step(from);
		if (!ret && vmtrace_ending())
			return -ENODATA;
		cond_resched();
	} while (!ret && from != to);
	return ret;
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
 * Finish an admission that could not be made in one hold of the locks. Its number has
 * been taken, and the PTE's lock is not held now. First do what comes before it, even if
 * this admission is given up: nobody else does it, unless a whole set of later numbers
 * was taken meanwhile.
 *
 * Preemption has been disabled since before the number was taken. So at most one admission
 * for each CPU is on the way; and no grace period of RCU passes, which keeps the page tables
 * of members.
 *
 * The address space may not be traced (yet) by the trace that the number is of: a task may
 * have been preempted after it had looked, until a later window.
 */
static int vmtrace_admit_far(const struct vmtrace_touch *t,
			     struct vmtrace_locked *l)
{
	bool same, changed = false, admitted = false;
	struct vmtrace_touch now = *t;
	pte_t touched;
	u64 seq;

	vmtrace_late(VMTRACE_LATE_RESERVED);
	/*
	 * The record is of the PTE that was there before the number was taken: an
	 * event about what replaced it may have a greater one. See Set::admit().
	 */
	same = pte_same(ptep_get_lockless(t->ptep), t->pte) ||
	       vmtrace_broken(VMTRACE_BREAK_NOORDER | VMTRACE_BREAK_NOCOMPARE);
	vmtrace_rs_clear_way(l);
	/* It may have taken another number. */
	same = same && (pte_same(ptep_get_lockless(t->ptep), t->pte) ||
			vmtrace_broken(VMTRACE_BREAK_NOORDER |
				       VMTRACE_BREAK_NOCOMPARE));

	vmtrace_late(VMTRACE_LATE_ADMITTING);
	if (same) {
		spin_lock(t->ptl);
		now.pte = ptep_get(t->ptep);
		changed = !vmtrace_unchanged(t);
		if (!changed && vmtrace_may_enable(now.pte, t->flags) &&
		    (pte_same(now.pte, t->pte) ||
		     vmtrace_broken(VMTRACE_BREAK_NOORDER |
				    VMTRACE_BREAK_NOCOMPARE))) {
			touched = vmtrace_prepare(&now, &l->a);
			/* As vmtrace_mm_refs(), after the number was taken. */
			if ((s32)l->a.mm_id >= (s32)READ_ONCE(vmtrace_first_id)) {
				admitted = true;
				seq = vmtrace_rs_admit(l);
				if (seq != VMTRACE_NO_SEQ)
					vmtrace_admitted(&now, touched, &l->a,
							 seq);
			}
		}
		spin_unlock(t->ptl);
	}
	if (!admitted) {
		vmtrace_late(VMTRACE_LATE_ABORTING);
		vmtrace_rs_abort(l);
	}
	return changed ? VMTRACE_RESERVE_CHANGED : VMTRACE_RESERVE_GO;
}

/* Fill in @l for the access @t. Returns what the PTE is to be. */
static __always_inline pte_t vmtrace_begin(const struct vmtrace_touch *t,
					   struct vmtrace_locked *l)
{
	pte_t touched = vmtrace_prepare(t, &l->a);

	l->ptep = t->ptep;
	l->lock_seq = NULL;
	if (t->speculates && !vmtrace_broken(VMTRACE_BREAK_NOSEQ)) {
		l->lock_seq = &t->mm->mm_lock_seq.sequence;
		l->seq = t->seq;
	}
	l->epoch = this_cpu_read(vmtrace_epoch);
	return touched;
}

/* Take a number without the PTE's lock, and admit. */
static noinline int vmtrace_admit_apart(const struct vmtrace_touch *t,
					struct vmtrace_locked *l)
{
	vmtrace_begin(t, l);
	vmtrace_rs_reserve(l);
	if (l->answer & VMTRACE_RESERVE_KICK)
		vmtrace_rs_kick();
	l->answer &= ~VMTRACE_RESERVE_KICK;
	if (l->answer == VMTRACE_RESERVE_FAR)
		return vmtrace_admit_far(t, l);
	return l->answer;
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
 * Admit a page in one hold of its page table's lock. This is not enough in some cases: the
 * victim's page table could not be locked at once, a huge page is involved, or accessed bits
 * are looked at. The PTE is locked and is t->pte. Returns VMTRACE_RESERVE_*: with _GO, the
 * page is a member, and enabled; with _FAR, go on without the lock.
 */
static __always_inline int vmtrace_admit_here(const struct vmtrace_touch *t,
					      struct vmtrace_locked *l)
{
	pte_t touched;

	touched = vmtrace_begin(t, l);
	vmtrace_rs_admit_locked(l);
	if (likely((l->answer & ~VMTRACE_RESERVE_KICK) == VMTRACE_RESERVE_GO))
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

		return vmtrace_admit_apart(&copy, &l);
	}
	spin_lock(t->ptl);
	if (likely(pte_same(ptep_get(t->ptep), t->pte)))
		answer = vmtrace_admit_here(t, &l);
	spin_unlock(t->ptl);
	if (likely(answer == VMTRACE_RESERVE_GO))
		return answer;
	if (answer & VMTRACE_RESERVE_KICK)
		vmtrace_rs_kick();
	answer &= ~VMTRACE_RESERVE_KICK;
	if (unlikely(answer == VMTRACE_RESERVE_FAR)) {
		/* A copy, so that *t need not be in memory. */
		const struct vmtrace_touch copy = *t;

		answer = vmtrace_admit_far(&copy, &l);
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
	if (kind & VMTRACE_ENTRY_PUD)
		WRITE_ONCE(vmtrace_had_puds, true);
	vmtrace_set_words(t->mm, t->ptep, words);
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
		vmtrace_set_words(mm, t.ptep, words);
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
